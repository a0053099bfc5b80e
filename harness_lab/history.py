"""What later proposals may know of earlier steps: aggregates, facts of failed candidates (EVID-04, EVID-05).

It lives on across adoptions and model updates. Must not hold a Val task, answer or trace.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict

from harness_lab.labels import Label
from harness_lab.selection import Decision

_HEAD: Final = 300
_TAIL: Final = 900
"""Characters of a long outcome that are kept: the last lines of a traceback say what happened."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _shortened(text: str) -> str:
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} ... {text[-_TAIL:]}"


class Tried(_Frozen):
    """One candidate of an earlier step."""

    label: ClassVar[Label] = "public"

    harness: str
    hypothesis: str
    outcome: Annotated[str, AfterValidator(_shortened)]
    """`adopted`, `not better ...`, `program errors ...`, or why it never reached Val: crash text of a Train
    task, the reason of a failed preflight, of a check or of a scan. Never the text of an error on Val."""
    correct: int | None = None
    """Val tasks answered right, an aggregate; None if it never reached Val."""


class HistoryEntry(_Frozen):
    """One finished step."""

    label: ClassVar[Label] = "public"

    cycle: int
    step: int
    parent: str
    parent_correct: int
    total: int
    adopted: bool
    tried: tuple[Tried, ...]
    skipped: tuple[str, ...] = ()
    """Why proposals were not made, or could not be read."""


def history_entry(
    cycle: int,
    step: int,
    decision: Decision,
    dropped: Sequence[Tried] = (),
    skipped: Sequence[str] = (),
) -> HistoryEntry:
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
        skipped=tuple(_shortened(reason) for reason in skipped),
    )


def _outcome(decision: Decision, index: int, errors: int) -> str:
    if decision.index == index:
        return "adopted"
    if errors:
        return f"program errors in {errors} of {decision.total} Val episodes"
    return "not better than the parent, or than the adopted one"
