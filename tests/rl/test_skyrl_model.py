"""SkyRL's inference client as a task model; no SkyRL is needed."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from broker.errors import ModelUnavailable
from broker.model import Completion, Sampling
from rl.skyrl.model import SkyrlModel, read_answer, session
from tests.rl.with_skyrl.fake_client import ScriptedClient, said

SAMPLING = Sampling(temperature=1.0, seed=5, max_tokens=8)


async def ask(client: ScriptedClient, seconds: float = 5.0) -> Completion:
    model = SkyrlModel([7, 9], seconds=seconds)
    model.open(client, asyncio.get_running_loop())
    return await model.complete((1, 2), SAMPLING)


@pytest.mark.spec("HOST-06", "HOST-12", "RL-02")
async def test_a_call_sends_every_parameter_and_the_salt_of_the_weights() -> None:
    client = ScriptedClient()
    with session("t-3"):
        completion = await ask(client)
    (request,) = client.requests
    assert request["prompt_token_ids"] == [[1, 2]]
    assert request["session_ids"] == ["t-3"]
    assert request["cache_salt"] == "weights-3"
    assert request["sampling_params"] == {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": 5,
        "max_tokens": 8,
        "stop_token_ids": [7, 9],
        "logprobs": 1,
        "skip_special_tokens": True,
    }
    assert completion.token_ids == tuple(said("<answer>A</answer>", 8)["response_ids"][0])
    client.weight_version = 4
    await ask(client)
    assert client.requests[1]["cache_salt"] == "weights-4"


async def test_sessions_of_concurrent_episodes_stay_apart() -> None:
    client = ScriptedClient()
    model = SkyrlModel([])
    model.open(client, asyncio.get_running_loop())

    async def one(name: str) -> None:
        with session(name):
            await asyncio.sleep(0)
            await model.complete((len(name),), SAMPLING)

    await asyncio.gather(one("a"), one("bb"), one("ccc"))
    seen = {len(item["session_ids"][0]): item["prompt_token_ids"][0][0] for item in client.requests}
    assert seen == {1: 1, 2: 2, 3: 3}


async def test_a_call_after_the_rollout_never_reaches_the_engine() -> None:
    client = ScriptedClient()
    model = SkyrlModel([])
    with pytest.raises(ModelUnavailable, match="the rollout is over"):
        await model.complete((1,), SAMPLING)
    model.open(client, asyncio.get_running_loop())
    model.close()
    with pytest.raises(ModelUnavailable, match="the rollout is over"):
        await model.complete((1,), SAMPLING)
    await model.finish("t-0")
    assert client.requests == client.finished == []


async def test_an_engine_that_hangs_is_told_from_a_slow_one_and_its_request_is_dropped() -> None:
    async def never(_: Any) -> Any:
        await asyncio.sleep(60)

    client = ScriptedClient(never)
    with pytest.raises(ModelUnavailable, match=r"no answer within 0 s"):
        await ask(client, seconds=0.05)
    await asyncio.sleep(0.05)
    assert client.open == 0


async def test_whatever_the_client_raises_is_ours() -> None:
    def broken(_: Any) -> Any:
        raise ConnectionResetError("peer gone")

    with pytest.raises(ModelUnavailable, match="ConnectionResetError: peer gone"):
        await ask(ScriptedClient(broken))


async def test_an_end_of_session_that_fails_costs_nothing() -> None:
    class Rude(ScriptedClient):
        async def finish_session(self, session_id: str) -> None:
            raise OSError("no router")

    model = SkyrlModel([])
    model.open(Rude(), asyncio.get_running_loop())
    await model.finish("t-0")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no ids": ({"response_ids": [[]], "response_logprobs": [[]]}, "generated nothing"),
    "no log-probabilities": ({"response_logprobs": None}, "answered something else"),
    "too few log-probabilities": ({"response_logprobs": [[-1.0]]}, "log-probabilities for"),
    "a log-probability above 0": ({"response_logprobs": [[0.5, -1.0]]}, "above 0"),
    "aborted": ({"stop_reasons": ["abort"]}, "ended a generation with 'abort'"),
    "cut too early": ({"stop_reasons": ["length"]}, "shorter than budgets.context_tokens"),
    "too long": ({"response_ids": [[1] * 9], "response_logprobs": [[-1.0] * 9]}, "ignores max_tokens"),
    "two answers": ({"response_ids": [[1], [2]]}, "answered something else"),
    "negative id": ({"response_ids": [[-1, 2]]}, "cannot be"),
    "ids missing": ({"response_ids": None}, "answered something else"),
}


@pytest.mark.spec("RL-05")
@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_cannot_be_trained_on_is_refused(fault: str) -> None:
    change, words = FAULTS[fault]
    good = {"response_ids": [[4, 5]], "response_logprobs": [[-1.0, -2.0]], "stop_reasons": ["stop"]}
    assert read_answer(good, SAMPLING).logprobs == (-1.0, -2.0)
    with pytest.raises(ModelUnavailable, match=words):
        read_answer({**good, **change}, SAMPLING)


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_calls_are_answered_in_the_loop_of_skyrls_client(other_loop: asyncio.AbstractEventLoop) -> None:
    loops: list[Any] = []

    def look(_: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        return said("x", 8)

    model = SkyrlModel([])
    model.open(ScriptedClient(look), other_loop)
    await model.complete((1,), SAMPLING)
    assert loops == [other_loop]
    assert loops != [asyncio.get_running_loop()]
