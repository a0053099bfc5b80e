"""Whose time it is: the episode clock charges the program and its model, never the host (HOST-03)."""

import asyncio
import time
from typing import Any

import pytest
from episode_programs import LOOP, play

from broker.model import Completion, Sampling
from broker.record import GradedEpisode
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, attempt, make_broker


class SlowModel(ScriptedModel):
    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        await asyncio.sleep(0.1)
        return await super().complete(prompt_ids, sampling)


class OneAtATime(SlowModel):
    """An engine of one sequence behind the host's own queue (case T17)."""

    def __init__(self, broker_limit: Any) -> None:
        super().__init__("<answer>x</answer>")
        self._limit = broker_limit

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        async with self._limit.slot():
            return await super().complete(prompt_ids, sampling)


@pytest.mark.spec("HOST-03", "HOST-07")
async def test_waiting_in_the_hosts_queue_is_reported_and_never_charged() -> None:
    from broker.limiter import Limiter

    # A second of room for each episode's own tenth, for this machine may be busy.
    broker = make_broker(OneAtATime(Limiter(1)), limit=16, seconds=1.2)
    results = await broker.run_all([attempt(ASK_AND_SUBMIT) for _ in range(16)])
    records = [result.record for result in results if isinstance(result, GradedEpisode)]
    assert [record.stop_reason for record in records] == ["first_answer"] * 16
    assert max(record.queue_seconds for record in records) > 1.25, (
        "the last one waited longer than its budget"
    )
    assert max(record.seconds for record in records) < 1.2


@pytest.mark.spec("HOST-03")
async def test_a_slow_model_call_ends_at_the_episode_clock() -> None:
    began = time.monotonic()
    graded = await play(LOOP, model=SlowModel("thinking"), seconds=0.25)
    assert graded.record.stop_reason == "time_budget"
    assert time.monotonic() - began < 2
    assert len(graded.record.model_calls) <= 3, "the call that was under way is recorded"


@pytest.mark.spec("HOST-03", "HOST-07")
async def test_the_hosts_own_work_on_a_prompt_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    import broker.episode as module

    plain = module.build_prompt

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return plain(*arguments)

    monkeypatch.setattr(module, "build_prompt", slow)
    graded = await play(ASK_AND_SUBMIT, seconds=0.25)
    assert graded.record.stop_reason == "first_answer"
    assert graded.record.seconds < 0.2
