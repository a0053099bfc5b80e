"""Interpretations see the public record only, and are dropped when structure, address or class is wrong."""

from typing import Any

import pytest
from lab_samples import a_task, given, one_episode, record, tool_call
from test_lab_feedback import Broken

from harness_lab.annotation import Annotation, InterpretationRequest
from harness_lab.auxiliary import RuleAuxiliary
from harness_lab.evidence import Interaction
from harness_lab.interpret import interpret, interpretation_request, read_annotation
from harness_lab.replies import ReplyCase

VALID: dict[str, Any] = {
    "reward": -1,
    "type": "correction",
    "evidence": "the value is not in the row",
    "fields": ["episode/submission/0/text", "episode/tool/0/stdout"],
    "hint": "read the row",
}
EPISODE = record(tools=(tool_call(stdout="1085"),), submissions=("7", "8"))
GIVEN = given(ReplyCase.RECONSIDER)
REQUEST = interpretation_request("At how many degrees?", EPISODE, GIVEN)


@pytest.mark.spec("FB-05")
def test_a_request_holds_the_record_up_to_the_answer_and_nothing_of_a_verdict() -> None:
    fields = {"question", "outputs", "tools", "submission", "answer", "reply"}
    assert set(InterpretationRequest.model_fields) == fields
    assert REQUEST.outputs == ("7",)
    assert REQUEST.answer == "7"
    assert REQUEST.addresses() == {
        "episode/question",
        "episode/call/0/text",
        "episode/tool/0/code",
        "episode/tool/0/stdout",
        "episode/tool/0/error",
        "episode/submission/0/text",
        "episode/submission/0/reply",
    }


@pytest.mark.spec("FB-05")
def test_an_address_of_a_request_is_the_same_field_of_the_evidence() -> None:
    seen = Interaction(task=a_task(), record=EPISODE, given=(GIVEN,))
    shown = interpretation_request(a_task().prompt, EPISODE, GIVEN).parts()
    shown.pop("episode/submission/0/reply")
    assert {address: one_episode(seen).text(address) for address in shown} == shown


@pytest.mark.spec("FB-06")
def test_a_valid_annotation_is_kept() -> None:
    assert read_annotation(VALID, REQUEST, GIVEN).hint == "read the row"


@pytest.mark.spec("FB-06")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"fields": ["episode/call/7/text"]}, "unknown field address"),
        ({"type": "acceptance", "reward": 1}, "does not agree"),
        ({"reward": 1}, "does not agree"),
        ({"type": "new_requirement"}, "does not agree"),
        ({"reward": True}, "annotation field reward"),
        ({"type": "praise"}, "annotation field type"),
        ({"verdict": "wrong"}, "annotation field verdict"),
        ({"evidence": None}, "annotation field evidence"),
    ],
)
def test_an_invalid_annotation_is_refused_by_name(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_annotation({**VALID, **change}, REQUEST, GIVEN)


@pytest.mark.spec("FB-06")
async def test_a_dropped_annotation_leaves_a_reason_and_the_step_goes_on() -> None:
    annotation, problem = await interpret(Broken(None), "q", EPISODE, GIVEN)
    assert annotation is None
    assert "down" in problem


@pytest.mark.spec("FB-05", "FB-06")
@pytest.mark.parametrize("case", list(ReplyCase))
async def test_the_rule_interpreter_is_valid_for_every_case(case: ReplyCase) -> None:
    episode = record(tools=(tool_call(error="KeyError"),))
    annotation, problem = await interpret(RuleAuxiliary(), "q", episode, given(case))
    assert problem == ""
    assert annotation is not None
    assert annotation.reward == (1 if case is ReplyCase.ACCEPTED else -1)


@pytest.mark.spec("FB-07")
def test_an_annotation_is_a_hypothesis_wherever_it_goes_and_nothing_else() -> None:
    found = read_annotation({**VALID, "status": "fact"}, REQUEST, GIVEN)
    assert found.status == "hypothesis"
    assert '"status":"hypothesis"' in found.model_dump_json()
    with pytest.raises(ValueError, match="status"):
        Annotation.model_validate({**VALID, "status": "fact"})


@pytest.mark.spec("FB-06")
def test_quotes_need_not_match_the_record_word_for_word() -> None:
    assert read_annotation({**VALID, "evidence": "words of nobody"}, REQUEST, GIVEN).evidence
