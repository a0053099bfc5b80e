"""Many attempts: order, retries, masking, one death without siblings, and nothing left behind."""

import asyncio
from typing import Any

import pytest

from broker.attempt import call_seed, task_seed
from broker.broker import Broker, Lost
from broker.errors import ModelUnavailable, SandboxLost
from broker.model import Completion, Sampling
from broker.record import GradedEpisode
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, attempt, make_broker, release, template
from tests.fixtures.fake_sandbox import FakeFactory


class FailingModel(ScriptedModel):
    """Fails the calls whose prompt holds a word."""

    def __init__(self, word: str) -> None:
        super().__init__("<answer>x</answer>")
        self._word = word

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        completion = await super().complete(prompt_ids, sampling)
        await asyncio.sleep(0.01)
        if self._word in template().decode(prompt_ids):
            raise ModelUnavailable("the engine is gone")
        return completion


def all_tasks(**changes: Any) -> list[Any]:
    return [attempt(ASK_AND_SUBMIT, task, **changes) for task in release().tasks]


async def test_results_keep_the_order_and_one_limit_holds_for_all() -> None:
    broker = make_broker(ScriptedModel("<answer>x</answer>"), limit=3)
    seen: list[str] = []
    results = await broker.run_all(all_tasks(), progress=lambda graded: seen.append(graded.record.task_id))
    ids = [result.record.task_id for result in results if isinstance(result, GradedEpisode)]
    assert ids == [task.id for task in release().tasks]
    assert sorted(seen) == sorted(ids)
    assert broker.limiter.peak == 3


@pytest.mark.spec("HOST-07")
async def test_a_sandbox_that_fails_to_start_is_tried_again_and_noted() -> None:
    broker = make_broker(ScriptedModel("<answer>x</answer>"), FakeFactory(failures=2))
    graded = await broker.run(attempt(ASK_AND_SUBMIT))
    assert graded.record.stop_reason == "first_answer"
    assert graded.record.notes["retries"] == ["SandboxLost: the fake factory was told to fail"] * 2
    broker = make_broker(ScriptedModel("<answer>x</answer>"), FakeFactory(failures=3))
    with pytest.raises(SandboxLost):
        await broker.run(attempt(ASK_AND_SUBMIT))


async def test_a_lost_attempt_is_masked_in_its_place_and_its_siblings_finish() -> None:
    word = release().tasks[2].prompt[:25]
    factory = FakeFactory()
    broker = make_broker(FailingModel(word), factory, retries=0)
    results = await broker.run_all(all_tasks(), masked_ok=True)
    lost = [index for index, result in enumerate(results) if isinstance(result, Lost)]
    assert 2 in lost
    assert len(lost) < len(results)
    entry = results[2]
    assert isinstance(entry, Lost)
    assert entry.error == "ModelUnavailable: the engine is gone"
    assert entry.attempt.task == release().tasks[2]
    assert len(factory.started) == factory.closed


@pytest.mark.spec("SEL-04")
async def test_without_masking_a_loss_stops_what_was_not_begun_and_is_raised() -> None:
    factory = FakeFactory()
    broker = make_broker(FailingModel(""), factory, retries=0, limit=2)
    with pytest.raises(ModelUnavailable, match="the engine is gone"):
        await broker.run_all(all_tasks())
    assert len(factory.started) <= 4
    assert len(factory.started) == factory.closed


async def test_cancelling_closes_every_sandbox() -> None:
    factory = FakeFactory()
    code = "import time\ndef run(task, api):\n    time.sleep(30)\n"
    broker = make_broker(ScriptedModel("x"), factory, limit=4)
    running = asyncio.gather(broker.run_all([attempt(code) for _ in range(6)]))
    await asyncio.sleep(0.1)
    assert len(factory.started) == 4
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert factory.closed == 4
    assert broker.limiter.running == 0


async def test_a_bug_of_ours_leaves_at_once_and_cleans_up() -> None:
    class Broken(ScriptedModel):
        async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
            raise KeyError("a bug")

    factory = FakeFactory()
    with pytest.raises(KeyError):
        await make_broker(Broken("x"), factory).run_all(all_tasks())
    assert len(factory.started) == factory.closed


def test_the_identity_follows_whatever_shapes_an_episode() -> None:
    def identity(**changes: Any) -> str:
        return make_broker(ScriptedModel("x"), **changes).identity()

    def with_guidance(text: str) -> str:
        broker: Broker = make_broker(ScriptedModel("x"))
        broker.guidance = text
        return broker.identity()

    one = identity()
    assert one == identity()
    others = [identity(model_calls=8), identity(libraries=("numpy 2",)), with_guidance("Be brief.")]
    assert len({one, *others}) == 4


@pytest.mark.spec("SEL-03")
def test_seeds_are_fixed_by_seed_task_repetition_and_step() -> None:
    seeds = {task_seed(s, t, r, p) for s in (0, 1) for t in ("a", "b") for r in (0, 1) for p in (0, 1)}
    assert len(seeds) == 16
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert task_seed(3, "metal-1") == task_seed(3, "metal-1", 0, 0)
    assert call_seed(2**31 - 1, 1) == 0
