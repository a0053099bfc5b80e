"""Evidence is public by type, citable by id, bounded, and cleared by an adoption."""

import pytest
from lab_samples import interaction, record, tool_call
from pydantic import BaseModel, ValidationError

from broker.record import GradedEpisode, StopReason
from harness_lab.evidence import EvidenceBundle, Interaction, bundle, select_earlier
from harness_lab.replies import ReplyCase
from verifier.task import Verdict

SECRET = "CANARY-5f1b"


@pytest.mark.spec("EVID-01")
def test_evidence_holds_question_inputs_outputs_tools_annotations_and_diagnostics() -> None:
    seen = interaction("t1", ReplyCase.RECONSIDER, tools=(tool_call(stdout="1085", error=""),))
    text = bundle([], [seen]).model_dump_json()
    for part in ('does \\"t1\\" melt', "a question", "It melts.", "print(1)", "1085", "program_ended"):
        assert part in text


@pytest.mark.spec("EVID-01")
def test_an_interaction_refuses_a_graded_episode_and_has_no_field_for_a_verdict() -> None:
    graded = GradedEpisode(
        record=record(), verdict=Verdict(format_valid=True, correct=False, answer=SECRET, reason=SECRET)
    )
    with pytest.raises(ValidationError):
        Interaction(task=interaction().task, record=graded, given=())  # type: ignore[arg-type]
    names: set[str] = set()

    def walk(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            names.add(name)
            for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if isinstance(part, type) and issubclass(part, BaseModel):
                    walk(part)

    walk(EvidenceBundle)
    assert not names & {"verdict", "correct", "reward", "reference"} - {"reward"}
    assert SECRET not in bundle([], [interaction()]).model_dump_json()


def test_ids_name_record_and_observation_and_acceptance_has_none() -> None:
    found = bundle(
        [],
        [
            interaction("t1", ReplyCase.ACCEPTED),
            interaction("t2", ReplyCase.TOOL_FAILED, tools=(tool_call(error="KeyError: 'x'"),)),
            interaction("t3", crash="Traceback ... ValueError: no"),
            interaction("t4", submissions=(), stop=StopReason.OUTPUT_TRUNCATED),
        ],
    )
    assert [(item.id, item.kind, item.task_id) for item in found.items] == [
        ("e1:0", "tool_error", "t2"),
        ("e1:1", "correction", "t2"),
        ("e2:0", "crash", "t3"),
        ("e3:0", "unfinished", "t4"),
    ]
    assert [item.id for item in found.items_of(1)] == ["e1:0", "e1:1"]


@pytest.mark.spec("PROP-06")
@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        (["e0:0", "e1:0"], None),
        (["e0:0", "e0:1"], "at least two Train tasks"),
        (["e0:0"], "two to four"),
        (["e0:0", "e1:0", "e2:0", "e3:0", "e4:0"], "two to four"),
        (["e0:0", "e0:0", "e1:0"], "two to four"),
        (["e0:0", "e9:0"], "unknown evidence id"),
    ],
)
def test_a_citation_needs_two_to_four_known_ids_of_two_tasks(ids: list[str], problem: str | None) -> None:
    first = interaction("t0", ReplyCase.TOOL_FAILED, tools=(tool_call(error="KeyError"),))
    others = [interaction(f"t{n}", ReplyCase.RECONSIDER) for n in range(1, 5)]
    found = bundle([], [first, *others]).citation_problem(ids)
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.spec("EVID-03")
def test_earlier_records_are_the_last_twelve_troubled_and_the_last_four_accepted() -> None:
    troubled = [interaction(f"t{n}", ReplyCase.RECONSIDER) for n in range(15)]
    accepted = [interaction(f"a{n}", ReplyCase.ACCEPTED) for n in range(6)]
    chosen = select_earlier([*accepted, *troubled])
    assert [item.task.id for item in chosen] == [
        *(f"t{n}" for n in range(3, 15)),
        *(f"a{n}" for n in range(2, 6)),
    ]


@pytest.mark.spec("EVID-03")
def test_an_accepted_record_with_a_failed_call_counts_among_the_troubled() -> None:
    both = interaction("t1", ReplyCase.ACCEPTED, tools=(tool_call(error="KeyError"),))
    accepted = [interaction(f"a{n}", ReplyCase.ACCEPTED) for n in range(4)]
    assert both.accepted
    assert select_earlier([both, *accepted]) == (both, *accepted)
    untold = interaction("t2")
    assert select_earlier([untold]) == (), "neither troubled nor accepted"


@pytest.mark.spec("EVID-03")
def test_all_of_the_current_step_follows_the_earlier_ones_however_many() -> None:
    earlier = [interaction(f"t{n}", ReplyCase.RECONSIDER) for n in range(40)]
    current = [interaction(f"c{n}", ReplyCase.ACCEPTED) for n in range(30)]
    chosen = bundle(earlier, current).interactions
    assert [item.task.id for item in chosen] == [
        *(f"t{n}" for n in range(28, 40)),
        *(f"c{n}" for n in range(30)),
    ]


def test_a_bundle_survives_the_store() -> None:
    found = bundle([interaction("t1", ReplyCase.RECONSIDER)], [interaction("t2")])
    assert EvidenceBundle.model_validate(found.model_dump(mode="json")) == found
