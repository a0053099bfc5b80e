"""History holds aggregates and public facts of failures, across adoptions and model updates."""

import json

import pytest
from lab_samples import evaluation, interaction

from broker.budgets import Budgets
from broker.harness import Harness
from harness_lab.evidence import bundle
from harness_lab.history import HistoryEntry, Tried, history_entry
from harness_lab.improver.base import ProposalContext
from harness_lab.improver.view import overview, read_field
from harness_lab.replies import ReplyCase
from harness_lab.selection import CandidateResult, select

RIVALS = [
    CandidateResult(index=0, evaluation=evaluation({1}, harness="sha256:0"), hypothesis="shorter"),
    CandidateResult(index=1, evaluation=evaluation({1, 2, 3}, harness="sha256:1"), hypothesis="look up"),
    CandidateResult(
        index=2, evaluation=evaluation({1, 2, 3, 4}, harness="sha256:3", errors={5}), hypothesis="retry"
    ),
]
DROPPED = [
    Tried(
        harness="sha256:2", hypothesis="longer", outcome="the program fails: crash: Traceback\nKeyError: 'x'"
    ),
    Tried(harness="sha256:4", hypothesis="loop", outcome="executes, did not finish any of 3 tasks"),
]
SKIPPED = ("no proposal: syntax error in line 3: invalid syntax",)


def entry() -> HistoryEntry:
    return history_entry(2, 1, select(evaluation({1, 2}), RIVALS), DROPPED, SKIPPED)


@pytest.mark.spec("EVID-04", "EVID-05")
def test_an_entry_keeps_rejected_hypotheses_and_no_val_task() -> None:
    found = entry()
    assert [(t.hypothesis, t.correct) for t in found.tried] == [
        ("shorter", 1),
        ("look up", 3),
        ("retry", 4),
        ("longer", None),
        ("loop", None),
    ]
    assert found.tried[1].outcome == "adopted"
    assert found.tried[2].outcome == "program errors in 1 of 10 Val episodes"
    assert (found.parent_correct, found.total, found.adopted) == (2, 10, True)
    assert "v01" not in found.model_dump_json()


@pytest.mark.spec("EVID-05")
def test_the_text_of_an_error_on_val_stays_out_for_it_may_quote_val() -> None:
    outcome = evaluation({1}, errors={5}).outcomes[4].model_copy(update={"error": "crash: VALTEXT"})
    broken = evaluation({1, 2, 3})
    broken = broken.model_copy(update={"outcomes": (*broken.outcomes[:4], outcome, *broken.outcomes[5:])})
    decision = select(evaluation({1}), [CandidateResult(index=0, evaluation=broken, hypothesis="h")])
    assert "VALTEXT" not in history_entry(1, 1, decision).model_dump_json()


@pytest.mark.spec("EVID-05", "PROP-03")
def test_a_later_proposal_sees_crash_text_preflight_reasons_and_rejected_hypotheses() -> None:
    context = ProposalContext(
        evidence=bundle([], [interaction("t1", ReplyCase.RECONSIDER)]),
        inventory={},
        history=(entry(),),
        budgets=Budgets(),
    )
    parent = Harness(code="def run(task, api): ...")
    shown = overview(parent, context, 0, 3)
    read = read_field("history/0/tried/3/outcome", 0, parent, context).text
    for fact in ("KeyError: 'x'", "did not finish any of 3", "shorter", "retry", "syntax error in line 3"):
        assert fact in shown, fact
    assert "KeyError: 'x'" in read


def test_a_long_traceback_keeps_its_last_lines() -> None:
    text = "the program fails: " + "x" * 50_000 + "\nValueError: the end"
    outcome = Tried(harness="sha256:2", hypothesis="h", outcome=text).outcome
    assert len(outcome) < 1300
    assert outcome.startswith("the program fails")
    assert outcome.endswith("ValueError: the end")


def test_an_entry_of_before_is_still_read() -> None:
    old = {key: value for key, value in entry().model_dump(mode="json").items() if key != "skipped"}
    assert HistoryEntry.model_validate(json.loads(json.dumps(old))).skipped == ()
