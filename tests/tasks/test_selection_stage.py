"""What the select stage leaves behind: the catalog's record, and the decision in short for Prefect."""

import pytest

from catalog.digest import digest_bytes
from catalog.store import Ref
from harness_lab.selection import CandidateResult, Decision, select
from tasks.selection import decision_body, markdown, tried_before_val
from tasks.values import Finalist, Finalists
from tests.harness_lab.lab_samples import evaluation


def ref(text: str) -> Ref:
    return Ref(kind="blob", digest=digest_bytes(text.encode()), size=len(text))


def finalist(index: int, *, executable: bool, reason: str) -> Finalist:
    return Finalist(
        index=index,
        program=ref(f"program {index}"),
        executable=executable,
        reason=reason,
        hypothesis=f"hypothesis {index}",
        rationale="because",
        evidence_ids=("e0:0", "e1:0"),
    )


FINALISTS = Finalists(
    record=ref("finalists"),
    entries=(
        finalist(0, executable=True, reason="executes and finishes"),
        finalist(1, executable=False, reason="executes, did not finish any of 3 designated tasks"),
    ),
    skipped=("no proposal: enough",),
)


def decided() -> Decision:
    found = evaluation({1, 2, 3, 5, 6}, harness=ref("program 0").digest)
    again = evaluation({1, 2, 3, 5})
    return select(evaluation({1, 2, 3, 4}), [CandidateResult(index=0, evaluation=found)], again=again)


@pytest.mark.spec("SEL-09")
def test_case_t15_the_short_form_names_the_noise_the_null_and_the_floor() -> None:
    text = markdown(decided(), FINALISTS)
    assert "5/10" in text
    assert "p = 1" in text
    assert "not distinguishable from noise" in text
    assert "| parent again | 4/10 | 1 fixed, 1 broken" in text
    assert "| candidate 1 | not on Val | executes, did not finish any of 3 designated tasks |" in text
    assert "Were no candidate better than the parent" in text


@pytest.mark.spec("SEL-01", "SEL-09")
def test_the_record_keeps_every_candidate_and_why_it_was_lost() -> None:
    body = decision_body(decided(), FINALISTS)
    assert body["adopted"]
    assert 0 < body["null"]["as_large"] <= body["null"]["probability"] < 1
    assert [item["reason"] for item in body["dropped"]] == [FINALISTS.entries[1].reason]
    assert body["skipped"] == ["no proposal: enough"]
    assert [item["index"] for item in body["proposals"]] == [0, 1]


@pytest.mark.spec("EVID-05")
def test_later_proposals_learn_why_a_candidate_never_reached_val() -> None:
    [lost] = tried_before_val(FINALISTS)
    assert (lost.hypothesis, lost.outcome) == ("hypothesis 1", FINALISTS.entries[1].reason)


@pytest.mark.spec("SEL-05", "SEL-09")
def test_a_second_look_at_the_parent_never_changes_the_decision() -> None:
    with_it = decided()
    candidates = [
        CandidateResult(index=0, evaluation=evaluation({1, 2, 3, 5, 6}, harness=ref("program 0").digest))
    ]
    without = select(evaluation({1, 2, 3, 4}), candidates)
    assert with_it.model_copy(update={"again": None}) == without
    lucky = select(evaluation({1, 2, 3, 4}), candidates, again=evaluation(set(range(1, 11))))
    assert (lucky.adopted, lucky.selected) == (without.adopted, without.selected)
