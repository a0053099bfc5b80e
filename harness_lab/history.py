"""What later proposals may know of earlier steps: aggregates, facts of failed candidates (EVID-04, EVID-05).

It lives on across adoptions and model updates. Must not hold a Val task, answer or trace.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from harness_lab.selection import Decision


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tried(_Frozen):
    """One candidate of an earlier step."""

    harness: str
    hypothesis: str
    outcome: str
    """`adopted`, `not better ...`, `program errors`, or why it never reached Val."""
    correct: int | None = None
    """Val tasks answered right, an aggregate; None if it never reached Val."""


class HistoryEntry(_Frozen):
    """One finished step."""

    cycle: int
    step: int
    parent: str
    parent_correct: int
    total: int
    adopted: bool
    tried: tuple[Tried, ...]


def history_entry(cycle: int, step: int, decision: Decision, dropped: Sequence[Tried] = ()) -> HistoryEntry:
    """Reduce a decision to its aggregates; `dropped` are the candidates that never reached Val."""
    tried = [
        Tried(
            harness=candidate.harness,
            hypothesis=candidate.hypothesis,
            outcome=_outcome(decision, candidate.index, candidate.errors),
            correct=candidate.correct,
        )
        for candidate in decision.candidates
    ]
    return HistoryEntry(
        cycle=cycle,
        step=step,
        parent=decision.parent,
        parent_correct=decision.parent_correct,
        total=decision.total,
        adopted=decision.adopted,
        tried=(*tried, *dropped),
    )


def _outcome(decision: Decision, index: int, errors: int) -> str:
    if decision.index == index:
        return "adopted"
    return "program errors" if errors else "not better than the parent, or than the adopted one"
