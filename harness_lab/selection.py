"""The rule that decides a step: a pure function of complete Val evaluations (SEL-02, SEL-04..07, SEL-09).

Must not run anything, and must not see more of Val than who was right.
"""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from broker.evaluation import CoverageError, Evaluation
from broker.harness import Harness
from harness_lab.null import StepNull, estimate_noise, step_null
from harness_lab.statistics import DRAWS, PairedTable, paired_table


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CandidateResult(_Frozen):
    """A candidate that reached Val. `index` is its place among the step's proposals."""

    index: int
    evaluation: Evaluation
    hypothesis: str = ""


class Compared(_Frozen):
    """One candidate against the parent."""

    index: int
    harness: str
    hypothesis: str
    correct: int
    valid: int
    errors: int
    """Episodes that the program itself broke."""
    eligible: bool
    reason: str
    table: PairedTable


class Decision(_Frozen):
    """The outcome of one step."""

    adopted: bool
    selected: str
    """Digest of the program that the next step starts from."""
    index: int | None
    """The adopted candidate, or None when the parent stays."""
    reason: str
    parent: str
    parent_correct: int
    parent_valid: int
    parent_errors: int
    total: int
    """Val tasks: the denominator of every score here."""
    candidates: tuple[Compared, ...]
    null: StepNull | None = None
    """What the step would show if no candidate were better; None when none reached Val."""
    again: PairedTable | None = None
    """The parent against itself, evaluated afresh: the noise floor; None unless it was asked for."""


def duplicate_of(candidate: Harness, parent: Harness, earlier: Iterable[Harness]) -> str | None:
    """ "parent" or "an earlier candidate" when the bytes are the same, else None (SEL-02)."""
    if candidate.digest == parent.digest:
        return "parent"
    return "an earlier candidate" if any(candidate.digest == other.digest for other in earlier) else None


def select(
    parent: Evaluation,
    candidates: Sequence[CandidateResult],
    *,
    seed: int = 0,
    draws: int = DRAWS,
    again: Evaluation | None = None,
) -> Decision:
    """Adopt the best error-free candidate strictly above the parent; ties keep the parent or the earliest.

    `again` is a second evaluation of the parent; like all statistics it stands beside the rule. `draws` are
    those of the bootstrap. Raises `CoverageError` unless every evaluation covers exactly the parent's tasks
    of Val.
    """
    ordered = sorted(candidates, key=lambda candidate: candidate.index)
    for evaluation in [*(candidate.evaluation for candidate in ordered), *([again] if again else [])]:
        _check_coverage(parent, evaluation)
    compared = tuple(_compare(parent, candidate, seed, draws) for candidate in ordered)
    eligible = [candidate for candidate in compared if candidate.eligible]
    # max keeps the first of equals, and the order is that of the proposals.
    best = max(eligible, key=lambda candidate: candidate.correct, default=None)
    return Decision(
        adopted=best is not None,
        selected=best.harness if best else parent.harness,
        index=best.index if best else None,
        reason=_reason(parent, compared, best),
        parent=parent.harness,
        parent_correct=parent.correct,
        parent_valid=parent.valid,
        parent_errors=parent.errors,
        total=parent.total,
        candidates=compared,
        null=_null(parent, compared, best),
        again=_paired(parent, again, seed, draws) if again else None,
    )


def _null(parent: Evaluation, compared: Sequence[Compared], best: Compared | None) -> StepNull | None:
    if not compared:
        return None
    changed = [item.table.fixed + item.table.broken for item in compared]
    noise = estimate_noise(parent.correct, parent.total, changed)
    gain = best.correct - parent.correct if best else 0
    return step_null(parent.total, parent.correct, len(compared), noise, gain)


def _check_coverage(parent: Evaluation, other: Evaluation) -> None:
    wanted = [outcome.task_id for outcome in parent.outcomes]
    found = [outcome.task_id for outcome in other.outcomes]
    if (wanted, parent.split, parent.seed) != (found, other.split, other.seed) or parent.split != "val":
        raise CoverageError("a comparison needs the same Val tasks and seeds for parent and candidates")


def _paired(parent: Evaluation, other: Evaluation, seed: int, draws: int) -> PairedTable:
    return paired_table(
        {outcome.task_id: outcome.correct for outcome in parent.outcomes},
        {outcome.task_id: outcome.correct for outcome in other.outcomes},
        {outcome.task_id: outcome.material_group for outcome in parent.outcomes},
        seed=seed,
        draws=draws,
    )


def _compare(parent: Evaluation, candidate: CandidateResult, seed: int, draws: int) -> Compared:
    found = candidate.evaluation
    table = _paired(parent, found, seed, draws)
    if found.errors:
        reason = f"the program failed in {found.errors} of {found.total} episodes"
    elif found.correct <= parent.correct:
        reason = f"{found.correct} of {found.total} is not above the parent's {parent.correct}"
    else:
        reason = f"{found.correct} of {found.total} against the parent's {parent.correct}; {table.words()}"
    return Compared(
        index=candidate.index,
        harness=found.harness,
        hypothesis=candidate.hypothesis,
        correct=found.correct,
        valid=found.valid,
        errors=found.errors,
        eligible=not found.errors and found.correct > parent.correct,
        reason=reason,
        table=table,
    )


def _reason(parent: Evaluation, compared: Sequence[Compared], best: Compared | None) -> str:
    if best is not None:
        return f"candidate {best.index}: {best.reason}"
    if not compared:
        return f"no candidate reached Val; the parent stays at {parent.correct} of {parent.total}"
    return f"no error-free candidate is above the parent's {parent.correct} of {parent.total}"
