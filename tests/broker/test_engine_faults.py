"""An engine that breaks: asked again, then `ModelUnavailable` or a masked group, never an answer scored 0."""

import asyncio
import gzip
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.attempt import Lost
from broker.broker import Broker
from broker.client import CompletionsClient
from broker.endpoint import MAX_ANSWER_BYTES, EndpointSettings
from broker.errors import ModelUnavailable
from broker.evaluation import evaluate
from broker.harness import Harness
from broker.inference import InferenceService, InferenceSpec
from broker.model import Completion, Sampling
from broker.record import GradedEpisode
from rl.contract import RlContract
from rl.rollout import collect, plan_attempts
from tests.fixtures.episodes import ASK_AND_SUBMIT, TINY_MODEL, ScriptedModel, attempt, make_broker, release
from tests.fixtures.fake_sandbox import FakeFactory
from tests.fixtures.faulty_server import (
    Asked,
    Fault,
    FaultyServer,
    answer,
    completion,
    drip,
    endless,
    hang,
    raw,
    reset,
)

HARNESS = Harness(code=ASK_AND_SUBMIT)
Behaviour = Callable[[Asked], Fault]


def with_changes(**changes: Any) -> Behaviour:
    return lambda asked: answer(completion(asked, **changes))


def good(asked: Asked) -> Fault:
    return answer(completion(asked))


def nan(asked: Asked) -> Fault:
    text = str(completion(asked)).replace("'", '"').replace("-0.5", "NaN", 1)
    return answer(text.encode())


BREAKS_IN_TRANSPORT: dict[str, tuple[Behaviour, str]] = {
    "hangs": (lambda _: hang, "no whole answer within 1.5 s"),
    "drips": (lambda _: drip, "no whole answer within 1.5 s"),
    "closes at once": (lambda _: raw(), "RemoteProtocolError"),
    "closes in the middle of the body": (
        lambda _: raw(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"choices": ['),
        "RemoteProtocolError",
    ),
    "resets the connection": (lambda _: reset, "ReadError"),
    "closes in the middle of a chunk": (
        lambda _: raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n{}"),
        "RemoteProtocolError",
    ),
    "chunked garbage": (
        lambda _: raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n"),
        "RemoteProtocolError",
    ),
    "no HTTP at all": (lambda _: raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), "RemoteProtocolError"),
    "500": (lambda _: answer({"error": {"message": "out of memory"}}, 500), "status 500.*out of memory"),
    "503": (lambda _: answer(b"loading", 503), "status 503: loading"),
    "429": (lambda _: answer(b"slow down", 429), "'not now' .status 429: slow down"),
    "429 with a pause that is too long": (lambda _: answer(b"", 429, Retry_After="9999"), "'not now'"),
}
IS_WRONG: dict[str, tuple[Behaviour, str]] = {
    "a log-probability is missing": (
        with_changes(logprobs={"token_logprobs": [-0.5]}),
        "1 log-probabilities for",
    ),
    "NaN": (nan, "not JSON"),
    "a log-probability is null": (
        lambda asked: answer(completion(asked, token_ids=[5, 2], logprobs={"token_logprobs": [None, -0.5]})),
        "malformed at choices.0.logprobs",
    ),
    "a log-probability is positive": (
        with_changes(token_ids=[5, 2], logprobs={"token_logprobs": [2.5, -0.5]}),
        "above 0",
    ),
    "other prompt ids": (with_changes(prompt_token_ids=[1, 2, 3]), "saw other prompt ids"),
    "an id out of the vocabulary": (
        with_changes(token_ids=[100_000, 2], logprobs={"token_logprobs": [-0.5, -0.5]}),
        "token id 100000 is not among the model's 512",
    ),
    "no token ids": (with_changes(token_ids=None), "returns no token ids"),
    "more tokens than asked for": (
        with_changes(token_ids=[5] * 99, logprobs={"token_logprobs": [-0.5] * 99}),
        "ignores max_tokens",
    ),
    "cut before the limit": (with_changes(finish_reason="length"), "its context is shorter"),
    "an abort": (with_changes(finish_reason="abort"), "'abort'"),
    "a body without end": (lambda _: endless, "more than 16 MiB"),
    "compressed": (
        lambda asked: answer(gzip.compress(b" " * 10**7), Content_Encoding="gzip"),
        "compresses its answer",
    ),
    "HTML": (lambda _: answer(b"<html>login</html>"), "not JSON: <html>login"),
    "400": (lambda _: answer({"error": "no"}, 400), "status 400"),
}
FAULTS = BREAKS_IN_TRANSPORT | IS_WRONG
SETTINGS = EndpointSettings(timeout_seconds=1.5, attempts=2, patience_seconds=0.05)


def broker_of(server: FaultyServer, factory: FakeFactory | None = None, **changes: Any) -> Broker:
    client = CompletionsClient(server.url, "m", SETTINGS, back_off=0.01)
    return make_broker(client, factory, **{"retries": 0, "completion_tokens": 64, **changes})


async def closing(broker: Broker) -> None:
    assert isinstance(broker.model, CompletionsClient)
    await broker.model.close()


@pytest.mark.spec("HOST-06", "HOST-07", "SEL-04")
@pytest.mark.parametrize("name", FAULTS)
async def test_an_evaluation_ends_without_a_score(name: str) -> None:
    behave, words = FAULTS[name]
    factory = FakeFactory()
    with FaultyServer(behave) as server:
        broker = broker_of(server, factory)
        with pytest.raises(ModelUnavailable, match=words) as caught:
            await evaluate(broker, HARNESS, "val", seed=1)
        await closing(broker)
    assert "\n" not in str(caught.value)
    assert len(factory.started) == factory.closed
    tries = SETTINGS.attempts if name in BREAKS_IN_TRANSPORT and "429" not in name else 1
    assert len(server.asked) >= tries


@pytest.mark.spec("HOST-07", "RL-07")
@pytest.mark.parametrize("name", FAULTS)
async def test_a_batch_masks_the_prompt_group_and_trains_on_the_others(name: str) -> None:
    behave, words = FAULTS[name]
    tasks = release().split("train")[:3]
    contract = RlContract(attempts=2)
    broken = tasks[1]
    with FaultyServer(
        lambda asked: behave(asked) if broken.prompt in asked.prompt else good(asked)
    ) as server:
        broker = broker_of(server)
        attempts = plan_attempts(tasks, HARNESS, contract, seed=1, step=1)
        results = await broker.run_all(attempts, masked_ok=True)
        rollout = await collect(broker, attempts, contract)
        await closing(broker)
    lost = [result for result in results if isinstance(result, Lost)]
    assert {entry.attempt.task.id for entry in lost} == {broken.id}
    assert len(lost) == 2
    assert all(re.search(words, entry.error) for entry in lost)
    assert rollout.batch.lost_prompts == (broken.id,)
    assert len(rollout.episodes) == 4
    trained = {row.trajectory.instance for row in rollout.batch.rows if row.trainable}
    assert trained == {tasks[0].id, tasks[2].id}


@pytest.mark.spec("HOST-07", "HOST-03")
@pytest.mark.parametrize("name", BREAKS_IN_TRANSPORT)
async def test_what_passes_is_asked_again_and_costs_the_program_nothing(name: str) -> None:
    behave, _ = BREAKS_IN_TRANSPORT[name]
    if "too long" in name:
        return
    with FaultyServer(lambda asked: behave(asked) if asked.number == 1 else good(asked)) as server:
        settings = SETTINGS.model_copy(update={"patience_seconds": 30.0})
        client = CompletionsClient(server.url, "m", settings, back_off=0.6)
        graded = await make_broker(client, retries=0, completion_tokens=64).run(attempt(ASK_AND_SUBMIT))
        await client.close()
    assert (graded.record.stop_reason, len(server.asked)) == ("first_answer", 2)
    [call] = graded.record.model_calls
    assert call.seconds < 0.55, "neither the failed request nor the pause is charged"


@pytest.mark.spec("HOST-07")
async def test_a_pause_that_the_engine_names_is_kept_by_every_request() -> None:
    told = asyncio.Event()
    times: list[float] = []

    def behave(asked: Asked) -> Fault:
        times.append(time.monotonic())
        return answer(b"", 429, Retry_After="0.8") if asked.number == 1 else good(asked)

    with FaultyServer(behave) as server:
        settings = EndpointSettings(patience_seconds=30)
        client = CompletionsClient(server.url, "m", settings, back_off=0.01)

        async def later() -> Completion:
            await told.wait()
            return await client.complete((1, 2), Sampling(temperature=0, seed=0, max_tokens=64))

        waiting = asyncio.ensure_future(later())
        first = asyncio.ensure_future(client.complete((1,), Sampling(temperature=0, seed=0, max_tokens=64)))
        while client.endpoint._not_before == 0.0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        told.set()
        await asyncio.gather(first, waiting)
        await client.close()
    assert len(times) == 3
    assert min(times[1:]) - times[0] >= 0.8


@pytest.mark.spec("HOST-07", "SEL-08")
async def test_a_dead_engine_is_no_time_out_of_the_program_and_a_slow_one_is() -> None:
    with FaultyServer(lambda _: hang) as server:
        broker = broker_of(server, seconds=0.2)
        with pytest.raises(ModelUnavailable, match="no whole answer"):
            await broker.run(attempt(ASK_AND_SUBMIT))
        await closing(broker)

    class Slow(ScriptedModel):
        async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
            await asyncio.sleep(0.5)
            return await super().complete(prompt_ids, sampling)

    graded = await make_broker(Slow("<answer>x</answer>"), seconds=0.2).run(attempt(ASK_AND_SUBMIT))
    assert (graded.record.stop_reason, graded.record.error) == ("time_budget", None)
    assert len(graded.record.model_calls) == 1
    assert not graded.record.submissions


async def test_a_model_in_this_process_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Dead(ScriptedModel):
        async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
            await asyncio.sleep(3600)
            raise AssertionError

    monkeypatch.setattr("broker.episode._OVERDUE_SECONDS", 0.2)
    with pytest.raises(ModelUnavailable, match="after the episode clock"):
        await make_broker(Dead("x"), seconds=0.2, retries=0).run(attempt(ASK_AND_SUBMIT))


async def test_a_body_without_end_costs_the_host_no_more_than_its_bound() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with FaultyServer(lambda _: endless) as server:
        client = CompletionsClient(server.url, "m", SETTINGS.model_copy(update={"timeout_seconds": 60.0}))
        with pytest.raises(ModelUnavailable, match="16 MiB"):
            await client.complete((1,), Sampling(temperature=0, seed=0, max_tokens=64))
        await client.close()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 4 * MAX_ANSWER_BYTES


@pytest.mark.spec("HOST-07")
async def test_a_key_that_is_refused_is_never_repeated() -> None:
    with FaultyServer(lambda asked: answer(asked.headers["authorization"].encode(), 401)) as server:
        client = CompletionsClient(server.url, "m", api_key="sk-secret", key_hint="the variable MY_KEY")
        with pytest.raises(ModelUnavailable, match=r"status 401: Bearer \[key\] .set the variable MY_KEY"):
            await client.complete((1,), Sampling(temperature=0, seed=0, max_tokens=64))
        await client.close()


# -- processes of the run's own that die ------------------------------------------------------------------


def stub_spec(latency: float) -> InferenceSpec:
    command = ("python", "-m", "tests.fixtures.stub_server", "--latency", str(latency))
    settings = EndpointSettings(timeout_seconds=2, attempts=2)
    return InferenceSpec(kind="command", command=command, settings=settings)


def embedded_spec(_: float) -> InferenceSpec:
    return InferenceSpec(
        kind="embedded",
        device="cpu",
        threads=1,
        context_tokens=2048,
        settings=EndpointSettings(timeout_seconds=20, attempts=2),
    )


def serving_process(service: InferenceService) -> int:
    """The process that serves: the child itself, or the child that it attends to."""
    pid = service._process.pid  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    assert pid is not None
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


async def run_with(service: InferenceService, strike: Callable[[int], None] | None) -> list[GradedEpisode]:
    """One evaluation; `strike` hits the serving process once the first request is under way."""
    client = await service.start()
    assert isinstance(client, CompletionsClient)
    pid = serving_process(service)
    before = client.requests
    broker = make_broker(
        client, retries=0, limit=2, completion_tokens=400, context_tokens=2048, back_off=0.01
    )
    running = asyncio.ensure_future(evaluate(broker, HARNESS, "val", seed=1))
    if strike is not None:
        while client.requests == before and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        strike(pid)
    return (await running)[1]


@pytest.mark.slow
@pytest.mark.spec("HOST-07", "HOST-10")
@pytest.mark.parametrize("spec", [stub_spec, embedded_spec], ids=["command", "embedded"])
async def test_an_engine_killed_in_the_middle_of_a_generation_gives_no_score_and_is_replaced(
    spec: Callable[[float], InferenceSpec],
) -> None:
    service = InferenceService(spec(0.5), TINY_MODEL)
    try:
        with pytest.raises(ModelUnavailable, match="did not answer"):
            await run_with(service, lambda pid: os.kill(pid, signal.SIGKILL))
        deadline = time.monotonic() + 10
        while await service.usable() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert not await service.usable()
        await service.stop()
        again = await run_with(service, None)
        assert len(again) == len(release().split("val"))
    finally:
        await service.stop()


@pytest.mark.slow
@pytest.mark.spec("HOST-07", "HOST-10")
@pytest.mark.parametrize("spec", [stub_spec, embedded_spec], ids=["command", "embedded"])
async def test_a_frozen_engine_is_found_unusable_once_it_has_left_a_request_unanswered(
    monkeypatch: pytest.MonkeyPatch, spec: Callable[[float], InferenceSpec]
) -> None:
    monkeypatch.setattr("broker.inference._HEALTH_SECONDS", 1.0)
    impatient = {"settings": EndpointSettings(timeout_seconds=2, attempts=2)}
    service = InferenceService(spec(0.5).model_copy(update=impatient), TINY_MODEL)
    try:
        with pytest.raises(ModelUnavailable, match="no whole answer"):
            await run_with(service, lambda pid: os.kill(pid, signal.SIGSTOP))
        assert service.alive
        assert not await service.usable()
        began = time.monotonic()
        await service.stop()
        assert time.monotonic() - began < 60
    finally:
        await service.stop()


@pytest.mark.slow
@pytest.mark.spec("HOST-07", "HOST-10")
async def test_an_engine_that_hangs_in_a_generation_is_no_wrong_answer_and_unusable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.inference._HEALTH_SECONDS", 2.0)
    service = InferenceService(
        InferenceSpec(
            kind="command",
            command=("python", "-m", "tests.fixtures.hanging_engine", "--device", "cpu", "--threads", "1"),
            settings=EndpointSettings(timeout_seconds=3, attempts=1),
        ),
        TINY_MODEL,
    )
    try:
        client = await service.start()
        broker = make_broker(client, retries=0, limit=2, completion_tokens=64, context_tokens=2048)
        lost = await broker.run_all([attempt(ASK_AND_SUBMIT, mode="rl") for _ in range(2)], masked_ok=True)
        assert all(isinstance(one, Lost) and "ModelUnavailable" in one.error for one in lost), "masked"
        with pytest.raises(ModelUnavailable, match="no whole answer"):
            await evaluate(broker, HARNESS, "val", seed=1)
        assert service.alive
        assert not await service.usable(), "so that the run replaces it"
        assert await client.identity(), "although it says which model it serves"
    finally:
        await service.stop()
