"""The completions client sends everything explicitly, repeats failed transport, and repairs nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from broker.client import CompletionsClient
from broker.clock import EpisodeClock, current_clock
from broker.endpoint import EndpointSettings
from broker.errors import ModelUnavailable
from broker.limiter import Limiter
from broker.model import Sampling
from broker.record import GradedEpisode
from tests.fixtures.episodes import ASK_AND_SUBMIT, attempt, make_broker
from tests.fixtures.http_server import ThreadedServer
from tests.fixtures.stub_server import StubServer

SAMPLING = Sampling(temperature=0.5, seed=11, max_tokens=32)
GOOD: dict[str, Any] = {
    "choices": [
        {
            "token_ids": [5, 6],
            "finish_reason": "stop",
            "logprobs": {"token_logprobs": [-0.1, -0.2]},
            "text": "",
        }
    ]
}


def serving(answer: Callable[[dict[str, Any], int], Response]) -> ThreadedServer:
    """A completions endpoint that answers with a function of the body and the number of the request."""
    count = 0

    async def completions(request: Request) -> Response:
        nonlocal count
        count += 1
        return answer(orjson.loads(await request.body()), count)

    return ThreadedServer(Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])]))


def json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status)


async def ask(url: str, **options: Any) -> Any:
    client = CompletionsClient(url, "stub", EndpointSettings(**options), back_off=0.01)
    try:
        return await client.complete((1, 2, 3), SAMPLING)
    finally:
        await client.close()


@pytest.mark.spec("HOST-12", "HOST-06")
async def test_every_sampling_parameter_and_the_exact_ids_are_sent() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any], _: int) -> Response:
        bodies.append(body)
        return json(GOOD)

    with serving(answer) as server:
        completion = await ask(server.url)
    assert completion.token_ids == (5, 6)
    assert completion.logprobs == (-0.1, -0.2)
    assert bodies == [
        {
            "model": "stub",
            "prompt": [1, 2, 3],
            "max_tokens": 32,
            "temperature": 0.5,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": 11,
            "n": 1,
            "stream": False,
            "echo": False,
            "logprobs": 1,
            "return_token_ids": True,
            "add_special_tokens": False,
        }
    ]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_passing_failure_is_repeated(status: int) -> None:
    with serving(lambda _, count: json(GOOD) if count == 3 else json("busy", status)) as server:
        assert (await ask(server.url)).token_ids == (5, 6)


async def test_the_time_of_failed_requests_is_not_charged() -> None:
    clock = EpisodeClock(10)
    current_clock.set(clock)
    clock.start()
    with serving(lambda _, count: json(GOOD) if count == 3 else json("busy", 503)) as server:
        client = CompletionsClient(server.url, "stub", back_off=0.1)
        await client.complete((1,), SAMPLING)
        await client.close()
    current_clock.set(None)
    assert clock.waited > 0.25
    assert client.requests == 3


def choice(**changes: Any) -> dict[str, Any]:
    return {"choices": [{**GOOD["choices"][0], **changes}]}


@pytest.mark.spec("HOST-06")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (json(choice(token_ids=None)), "returns no token ids: start vLLM"),
        (json({"choices": [{"text": "hello", "finish_reason": "stop"}]}), "returns no token ids"),
        (json(choice(token_ids=[])), "generated nothing"),
        (json(choice(token_ids=[1, -2])), "the token id -2, which cannot be"),
        (json(choice(token_ids=[1, 2.5])), "malformed at choices"),
        (json(choice(token_ids=["5", 6])), "malformed at choices.0.token_ids.0"),
        (json(choice(token_ids=[True, 6])), "malformed at choices.0.token_ids.0"),
        (json(choice(logprobs={"token_logprobs": [0.5, -0.1]})), "log-probability of 0.5, above 0"),
        (json(choice(finish_reason="length")), "cut a generation at 2 of 32 tokens.*budgets.context_tokens"),
        (
            json(choice(token_ids=[1] * 33, logprobs={"token_logprobs": [-1] * 33})),
            "33 tokens, 32 were allowed",
        ),
        (json({"choices": GOOD["choices"] * 2}), "malformed at choices"),
        (json(choice(logprobs=None)), "0 log-probabilities for 2"),
        (json(choice(logprobs={"token_logprobs": [-0.1]})), "1 log-probabilities for 2"),
        (json(choice(logprobs={"token_logprobs": [None, -0.1]})), "malformed at choices"),
        (json(choice(prompt_token_ids=[1, 2])), "must not tokenise"),
        (json(choice(finish_reason="abort")), "'abort'"),
        (json({"choices": []}), "malformed at choices"),
        (json([1]), "no JSON object"),
        (Response(b"<html>"), "not JSON"),
        (json({"error": "prompt too long"}, 400), "status 400.*prompt too long"),
        (json({"error": "no"}, 404), "status 404"),
        (json("busy", 503), "after 3 attempts .status 503"),
    ],
)
async def test_an_answer_that_cannot_be_data_is_refused_in_one_line(answer: Response, words: str) -> None:
    with serving(lambda *_: answer) as server, pytest.raises(ModelUnavailable, match=words) as caught:
        await ask(server.url)
    assert "\n" not in str(caught.value)


async def test_an_endpoint_that_is_down_is_named_with_the_fix() -> None:
    with pytest.raises(ModelUnavailable, match=r"http://127\.0\.0\.1:9/v1 did not answer.*start the server"):
        await ask("http://127.0.0.1:9")


async def test_a_hanging_endpoint_times_out() -> None:
    with StubServer(latency=0.5) as stub, pytest.raises(ModelUnavailable, match="no whole answer within"):
        await ask(stub.url, timeout_seconds=0.1, attempts=2)


async def test_sixty_four_requests_are_in_flight_at_once() -> None:
    with StubServer(policy=lambda *_: "ok", latency=0.3) as stub:
        client = CompletionsClient(stub.url, "stub")
        await asyncio.gather(*(client.complete((1,), SAMPLING) for _ in range(64)))
        await client.close()
        assert stub.peak == 64


async def test_a_declared_engine_size_queues_on_the_host_and_is_not_charged() -> None:
    clock = EpisodeClock(10)
    current_clock.set(clock)
    clock.start()
    with StubServer(policy=lambda *_: "ok", latency=0.1) as stub:
        client = CompletionsClient(stub.url, "stub", sequences=Limiter(1))
        await asyncio.gather(*(client.complete((1,), SAMPLING) for _ in range(4)))
        await client.close()
        assert stub.peak == 1
    current_clock.set(None)
    assert clock.queued > 0.2


@pytest.mark.spec("HOST-03", "HOST-07")
async def test_requests_beyond_the_connections_wait_on_the_host_and_are_not_charged() -> None:
    """Each episode has half again the time that its own request takes; the last ones wait five times that."""
    with StubServer(policy=lambda *_: "<answer>x</answer>", latency=0.8) as stub:
        client = CompletionsClient(stub.url, "stub")
        client.endpoint._connections = Limiter(2)
        broker = make_broker(client, limit=12, retries=0, seconds=2.0)
        done = await broker.run_all([attempt(ASK_AND_SUBMIT, repetition=n) for n in range(12)])
        await client.close()
        assert stub.peak == 2
    records = [one.record for one in done if isinstance(one, GradedEpisode)]
    assert [record.stop_reason for record in records] == ["first_answer"] * 12
    assert max(record.seconds for record in records) < 2.0
    assert max(record.queue_seconds for record in records) > 3.0, "longer than its whole clock"


async def test_the_sixty_fifth_request_waits_for_a_connection() -> None:
    clock = EpisodeClock(100)
    current_clock.set(clock)
    clock.start()
    with StubServer(policy=lambda *_: "ok", latency=0.4) as stub:
        client = CompletionsClient(stub.url, "stub")
        await asyncio.gather(*(client.complete((1,), SAMPLING) for _ in range(66)))
        await client.close()
        assert stub.peak == 64
    current_clock.set(None)
    assert clock.queued > 0.6, "two have waited"


async def test_the_identity_names_the_model_and_not_the_address() -> None:
    digests: set[str] = set()
    for name in ("stub", "stub", "other"):
        with StubServer(model_name=name) as stub:
            client = CompletionsClient(stub.url, name)
            digests.add(await client.identity())
            await client.close()
            await client.close()
    assert len(digests) == 2


async def test_an_unknown_model_name_is_refused_naming_what_is_served() -> None:
    with StubServer(model_name="small") as stub:
        client = CompletionsClient(stub.url, "large")
        with pytest.raises(ModelUnavailable, match=r"no model 'large' .it serves small"):
            await client.identity()
        await client.close()


def test_one_client_serves_several_event_loops_in_turn() -> None:
    with StubServer(policy=lambda *_: "ok") as stub:
        client = CompletionsClient(stub.url, "stub")

        async def once() -> None:
            await client.complete((1,), SAMPLING)

        asyncio.run(once())
        asyncio.run(once())
