"""History holds aggregates and public facts of failures, across adoptions and model updates."""

import pytest
from lab_samples import evaluation

from harness_lab.history import Tried, history_entry
from harness_lab.selection import CandidateResult, select


@pytest.mark.spec("EVID-04", "EVID-05")
def test_an_entry_keeps_rejected_hypotheses_and_no_val_task() -> None:
    rivals = [
        CandidateResult(index=0, evaluation=evaluation({1}, harness="sha256:0"), hypothesis="shorter"),
        CandidateResult(index=1, evaluation=evaluation({1, 2, 3}, harness="sha256:1"), hypothesis="look up"),
    ]
    dropped = [Tried(harness="sha256:2", hypothesis="longer", outcome="the program fails: KeyError")]
    entry = history_entry(2, 1, select(evaluation({1, 2}), rivals), dropped)
    assert [(t.hypothesis, t.correct) for t in entry.tried] == [
        ("shorter", 1),
        ("look up", 3),
        ("longer", None),
    ]
    assert entry.tried[1].outcome == "adopted"
    assert (entry.parent_correct, entry.total, entry.adopted) == (2, 10, True)
    assert "v01" not in entry.model_dump_json()
