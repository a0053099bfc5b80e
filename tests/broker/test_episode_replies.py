"""Replies of an interaction: which answer counts, who sees what, and whose time it is (FB-01, FB-02)."""

import pytest
from episode_programs import REPLIES, Replying, talk

from broker.attempt import Reply
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, a_task, attempt, make_broker, right_answer


@pytest.mark.spec("FB-01", "FB-02")
async def test_the_first_answer_counts_even_when_the_one_after_feedback_is_right() -> None:
    right = right_answer(a_task())
    researcher = Replying([Reply(text="Please look again.", accepted=False, detail={"case": "generic"})])
    graded = await talk(REPLIES, researcher, "no tag", right)
    record = graded.record
    assert [s.text for s in record.submissions] == ["no tag", right]
    assert [s.reply for s in record.submissions] == ["Please look again.", None]
    assert record.stop_reason == "first_answer"
    assert not graded.verdict.correct
    assert not graded.verdict.format_valid
    assert record.model_calls[1].messages[-1].source == "feedback"
    assert record.notes["replies"] == [
        {"submission": 0, "text": "Please look again.", "accepted": False, "detail": {"case": "generic"}}
    ]
    so_far, text, verdict = researcher.seen[0]
    assert (len(researcher.seen), text, verdict.format_valid) == (1, "no tag", False)
    assert len(so_far.model_calls) == len(so_far.submissions) == 1


@pytest.mark.spec("FB-01")
async def test_an_accepted_answer_ends_the_interaction_and_the_program_never_sees_the_reply() -> None:
    right = right_answer(a_task())
    graded = await talk(REPLIES, Replying([Reply(text="Good work.", accepted=True)]), right)
    assert graded.record.stop_reason == "accepted"
    assert graded.record.submissions[0].reply is None
    assert graded.record.notes["replies"][0]["text"] == "Good work."
    assert graded.verdict.correct


@pytest.mark.spec("FB-02")
async def test_a_crash_after_a_right_first_answer_is_recorded_beside_its_reward() -> None:
    right = right_answer(a_task())
    code = REPLIES.replace("        messages +=", "        1 / 0\n        messages +=")
    graded = await talk(code, Replying([Reply(text="Again?", accepted=False)]), right)
    assert graded.verdict.correct
    assert graded.record.stop_reason == "candidate_error"
    assert graded.record.error is not None
    assert graded.record.error.kind == "crash"


async def test_a_program_that_returns_after_a_reply_has_ended() -> None:
    code = ASK_AND_SUBMIT
    graded = await talk(code, Replying([Reply(text="Again?", accepted=False)]), "<answer>x</answer>")
    assert graded.record.stop_reason == "program_ended"


@pytest.mark.spec("HOST-08", "HOST-03")
async def test_no_reply_is_asked_for_in_rl_and_evaluation() -> None:
    for mode in ("rl", "evaluation"):
        researcher = Replying([])
        broker = make_broker(ScriptedModel("<answer>x</answer>"))
        graded = await broker.run(attempt(REPLIES, mode=mode), researcher)
        assert graded.record.stop_reason == "first_answer"
        assert researcher.seen == []


async def test_an_interaction_without_a_researcher_is_a_callers_mistake() -> None:
    with pytest.raises(ValueError, match="needs a researcher"):
        await make_broker(ScriptedModel("x")).run(attempt(ASK_AND_SUBMIT, mode="interaction"))


@pytest.mark.spec("HOST-03")
async def test_the_researchers_time_is_not_charged() -> None:
    researcher = Replying([Reply(text="Again?", accepted=False)], seconds=0.6)
    graded = await talk(REPLIES, researcher, "<answer>x</answer>", seconds=0.5)
    assert graded.record.stop_reason == "first_answer"
    assert len(graded.record.submissions) == 2
    assert graded.record.seconds < 0.5
