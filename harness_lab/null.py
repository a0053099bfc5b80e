"""How often a step adopts a program that is no better: the null beside the rule, exactly computed (SEL-09).

Two models of candidates that are as able as their parent. `step_null` is what a step is told: it takes the
parent's Val answers as they are, and each candidate's answers are the same ones, except that a share of them
(the noise) is drawn anew, right with the parent's own share. `fresh_null` draws the parent's answers anew as
well, as null controls do. Neither ever changes a decision. Must not know programs, tasks or references.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StepNull(_Frozen):
    """What selection would show in one step if no candidate were better than the parent."""

    candidates: int
    noise: float
    """Share of a candidate's answers that is drawn anew, 0 to 1."""
    probability: float
    """That at least one candidate comes out above the parent: a spurious adoption."""
    mean_gain: float
    """Mean apparent gain of such an adoption, a share of Val; 0 when there can be none."""
    as_large: float | None = None
    """Probability of a best gain at least as large as the one seen; None when nothing was gained."""


def score_distribution(chances: Sequence[float]) -> list[float]:
    """Probability of each number of right answers, 0 to all, given each task's chance to be right."""
    found = [1.0]
    for chance in chances:
        stay, rise = 1.0 - chance, chance
        found = [stay * here + rise * below for here, below in zip([*found, 0.0], [0.0, *found], strict=True)]
    return found


def best_of(distribution: Sequence[float], candidates: int) -> list[float]:
    """Distribution of the best of several independent scores."""
    below = [0.0, *(min(1.0, total) ** candidates for total in accumulate(distribution))]
    return [after - before for before, after in pairwise(below)]


def ability(correct: int, total: int) -> float:
    """The parent's share of right answers, never 0 or 1: half a right and half a wrong answer are added."""
    return (correct + 0.5) / (total + 1)


def estimate_noise(parent_correct: int, total: int, changed: Sequence[int]) -> float:
    """The noise that explains the changed answers (fixed and broken) of candidates that are no better.

    Two draws disagree with chance 2 p (1 - p), so the share of changed answers over that is the share that
    was drawn anew. Of a candidate that is truly better the estimate is too high, which makes the null wider.
    """
    if not changed:
        return 0.0
    right = ability(parent_correct, total)
    share = sum(changed) / (len(changed) * total)
    return min(1.0, share / (2 * right * (1 - right)))


def redrawn(correct: int, total: int, noise: float) -> list[float]:
    """Distribution of the score when a share of the answers is drawn anew with the same ability."""
    right = ability(correct, total)
    kept, gained = 1 - noise * (1 - right), noise * right
    return score_distribution([kept] * correct + [gained] * (total - correct))


def step_null(total: int, parent_correct: int, candidates: int, noise: float, best_gain: int = 0) -> StepNull:
    """The null of one step, the parent's answers taken as they are. `best_gain` in tasks, 0 for none.

    ValueError for a score, a noise or a number of candidates that cannot be.
    """
    if not (0 <= parent_correct <= total and total > 0 and 0.0 <= noise <= 1.0 and candidates >= 0):
        raise ValueError(
            f"no null for {parent_correct} of {total}, {candidates} candidates, a noise of {noise}"
        )
    best = best_of(redrawn(parent_correct, total, noise), candidates) if candidates else []
    gains = list(enumerate(best[parent_correct + 1 :], start=1))
    probability = sum(chance for _, chance in gains)
    expected = sum(gain * chance for gain, chance in gains)
    return StepNull(
        candidates=candidates,
        noise=noise,
        probability=probability,
        mean_gain=expected / (probability * total) if probability > 0 else 0.0,
        as_large=sum(chance for gain, chance in gains if gain >= best_gain) if best_gain > 0 else None,
    )


class Adoption(_Frozen):
    """What one step of a null control does on average."""

    probability: float
    gain: float
    """Expected apparent gain of the step in tasks; a step without an adoption counts as 0."""
    squared_gain: float
    """Expected square of that gain."""


def fresh_null(parent: Sequence[float], candidates: Sequence[Sequence[float]]) -> Adoption:
    """One step in which parent and candidates all answer afresh, given their score distributions."""
    below = [1.0] * len(parent)
    for distribution in candidates:
        below = [total * part for total, part in zip(below, accumulate(distribution), strict=True)]
    below = [min(1.0, total) for total in below]
    best = [after - before for before, after in pairwise([0.0, *below])]
    adopted = gained = squared = 0.0
    for score, chance in enumerate(parent):
        adopted += chance * (1 - below[score])
        for gain, part in enumerate(best[score + 1 :], start=1):
            gained += chance * part * gain
            squared += chance * part * gain * gain
    return Adoption(probability=adopted, gain=gained, squared_gain=squared)
