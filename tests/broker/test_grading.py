"""What the broker makes of verdicts: first answers count, and a lost grader is no verdict."""

from typing import Any

import pytest

from broker.attempt import Lost, Reply
from broker.errors import OURS
from broker.record import GradedEpisode, read_episode
from harness_lab.collect import first_answers
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, a_task, attempt, make_broker, right_answer
from tests.fixtures.fake_sandbox import FakeFactory
from verifier.errors import GraderLost
from verifier.grade import Grader
from verifier.task import Verdict

TWICE = """
def run(task, api):
    messages = [{"role": "user", "content": task["prompt"]}]
    while True:
        text = api.generate(messages)
        reply = api.submit(text)
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": reply["reply"], "source": "feedback"},
        ]
"""


class Doubting:
    """Accepts what is right, and asks again otherwise."""

    async def reply(self, task: Any, record_so_far: Any, text: str, verdict: Verdict) -> Reply:
        return Reply(text="Please look again.", accepted=verdict.correct)


async def talk(*texts: str) -> GradedEpisode:
    broker = make_broker(ScriptedModel(*texts))
    return await broker.run(attempt(TWICE, mode="interaction"), Doubting())


@pytest.mark.spec("FB-02", "REP-05")
async def test_t09_an_answer_repaired_after_feedback_stays_an_invalid_first_answer_and_is_shown_apart() -> (
    None
):
    right = right_answer(a_task())
    repaired = await talk("no tag", right)
    assert [submission.text for submission in repaired.record.submissions] == ["no tag", right]
    assert (repaired.verdict.format_valid, repaired.verdict.correct, repaired.verdict.reward) == (
        False,
        False,
        0.0,
    )
    assert repaired.verdict.reason == "tags = 0"
    assert repaired.repaired
    first, never = await talk(right, right), await talk("no tag", "<answer>nothing like it</answer>")
    assert (first.verdict.correct, first.repaired, never.repaired) == (True, False, False)
    line = first_answers([repaired, first, never])
    assert line == "first answers: 1 of 3 right, 2 without a valid answer; 1 more repaired after feedback"


async def test_an_episode_without_a_repair_keeps_its_bytes_and_one_with_it_is_read_back() -> None:
    never, repaired = await talk("<answer>x</answer>", "no tag"), await talk("no tag", right_answer(a_task()))
    assert "repaired" not in never.model_dump(mode="json")
    assert GradedEpisode.model_validate_json(repaired.model_dump_json()).repaired
    assert read_episode(repaired.model_dump_json().encode()) == repaired.record


class Losing:
    """A grader whose process is lost some times before it grades."""

    identity = "sha256:" + "0" * 64

    def __init__(self, grader: Grader, times: int) -> None:
        self._grader = grader
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grader, name)

    async def grade_aside(self, *arguments: Any) -> Verdict:
        if self.times:
            self.times -= 1
            raise GraderLost("the grader's process is gone, and the one after it is gone")
        return await self._grader.grade_aside(*arguments)


def losing(times: int, factory: FakeFactory, **changes: Any) -> Any:
    broker: Any = make_broker(ScriptedModel("<answer>x</answer>"), factory, **changes)
    broker.grader = Losing(broker.grader, times)
    return broker


@pytest.mark.spec("HOST-07", "SEL-08")
async def test_a_lost_grader_is_retried_then_masked_and_never_a_wrong_answer() -> None:
    factory = FakeFactory()
    graded = await losing(2, factory).run(attempt(ASK_AND_SUBMIT))
    assert graded.verdict.format_valid
    assert len(graded.record.notes["retries"]) == 2
    assert graded.record.notes["retries"][0].startswith("GraderLost: ")
    (lost,) = await losing(9, factory).run_all([attempt(ASK_AND_SUBMIT)], masked_ok=True)
    assert isinstance(lost, Lost)
    assert lost.error.startswith("GraderLost: the grader's process is gone")
    with pytest.raises(GraderLost):
        await losing(9, factory, retries=0).run_all([attempt(ASK_AND_SUBMIT)])
    assert GraderLost in OURS
    assert len(factory.started) == factory.closed
