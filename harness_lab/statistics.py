"""Paired statistics beside the selection rule; they never change a decision (SEL-09)."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

DRAWS: Final = 2000
"""Of the bootstrap."""


class PairedTable(BaseModel):
    """Two programs on the same tasks, with what the difference may be worth."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    both: int
    fixed: int
    """Wrong under the parent, right under the candidate."""
    broken: int
    neither: int
    p_value: float
    """Exact two-sided McNemar test on fixed against broken."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the accuracy difference, whole material groups redrawn."""

    @property
    def distinguishable(self) -> bool:
        return self.p_value < 0.05

    def words(self) -> str:
        """One line for a report."""
        verdict = "distinguishable from noise" if self.distinguishable else "not distinguishable from noise"
        low, high = (100 * bound for bound in self.interval)
        numbers = f"{self.fixed} fixed, {self.broken} broken, p = {self.p_value:.3g}"
        return f"{numbers}, difference {low:+.0f} to {high:+.0f} points: {verdict}"


def mcnemar_p(fixed: int, broken: int) -> float:
    """Exact two-sided p of the sign test; 1.0 when nothing changed.

    >>> mcnemar_p(2, 1), mcnemar_p(6, 0)
    (1.0, 0.03125)
    """
    total = fixed + broken
    if total == 0:
        return 1.0
    tail = sum(math.comb(total, count) for count in range(min(fixed, broken) + 1))
    return min(1.0, 2.0 * tail / 2.0**total)


def bootstrap_interval(
    differences: Mapping[str, Sequence[float]], *, seed: int = 0, draws: int = DRAWS
) -> tuple[float, float]:
    """95 % interval of the mean difference; `differences` holds one number a task, by material group."""
    groups = [differences[name] for name in sorted(differences)]
    sums = [(sum(group), len(group)) for group in groups]
    generator = random.Random(seed)
    means: list[float] = []
    for _ in range(draws):
        drawn = generator.choices(sums, k=len(sums))
        means.append(sum(total for total, _ in drawn) / sum(size for _, size in drawn))
    means.sort()
    return means[round(0.025 * (draws - 1))], means[round(0.975 * (draws - 1))]


def paired_table(
    parent: Mapping[str, bool],
    candidate: Mapping[str, bool],
    groups: Mapping[str, str],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> PairedTable:
    """Compare two programs by task id. ValueError unless all three cover the same tasks."""
    if parent.keys() != candidate.keys() or not parent.keys() <= groups.keys() or not parent:
        raise ValueError("a paired comparison needs the same tasks on both sides")
    pairs = [(parent[task], candidate[task]) for task in sorted(parent)]
    fixed, broken = pairs.count((False, True)), pairs.count((True, False))
    differences: dict[str, list[int]] = {}
    for task in sorted(parent):
        differences.setdefault(groups[task], []).append(int(candidate[task]) - int(parent[task]))
    return PairedTable(
        both=pairs.count((True, True)),
        fixed=fixed,
        broken=broken,
        neither=pairs.count((False, False)),
        p_value=mcnemar_p(fixed, broken),
        interval=bootstrap_interval(differences, seed=seed, draws=draws),
    )
