"""What rules without any knowledge score: random, the commonest letter, the longest option, always the first.

Owns the arithmetic over options and right letters. Must not know texts beyond their lengths.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from verifier.answers import LETTERS
from verifier.audit.model import SPLIT_ORDER, Baseline, Rule, SplitBaselines
from verifier.task import Split

MARGIN: Final = 0.10
"""A rule this far above random is flagged (DATA-05)."""

_EXACT: Final = 2000
"""Up to so many tasks the chance is summed exactly."""


@dataclass
class _Tally:
    """Sums over the tasks of one split."""

    tasks: int = 0
    with_options: int = 0
    unanswered: int = 0
    most_options: int = 0
    random: float = 0.0
    variance: float = 0.0
    longest: float = 0.0
    shortest: float = 0.0
    letters: list[int] = field(default_factory=lambda: [0] * len(LETTERS))

    @property
    def answered(self) -> int:
        return self.with_options - self.unanswered


class Baselines:
    """Takes tasks one by one."""

    def __init__(self) -> None:
        self._tallies: dict[Split, _Tally] = {split: _Tally() for split in SPLIT_ORDER}

    def add(self, split: Split, options: Sequence[str], right: int | None) -> None:
        """Count one task; `right` is the position of its right option."""
        tally = self._tallies[split]
        tally.tasks += 1
        if not options:
            return
        tally.with_options += 1
        if right is None or right >= len(options):
            tally.unanswered += 1
            return
        tally.most_options = max(tally.most_options, len(options))
        share = 1 / len(options)
        tally.random += share
        tally.variance += share * (1 - share)
        tally.letters[right] += 1
        lengths = [len(option) for option in options]
        if lengths[right] == max(lengths):
            tally.longest += 1 / lengths.count(max(lengths))
        if lengths[right] == min(lengths):
            tally.shortest += 1 / lengths.count(min(lengths))

    def finish(self) -> tuple[SplitBaselines, ...]:
        """One entry for each split that has tasks."""
        of_train = self._tallies["train"].letters
        favourite = of_train.index(max(of_train)) if any(of_train) else None
        return tuple(
            SplitBaselines(
                split=split,
                tasks=tally.tasks,
                with_options=tally.with_options,
                unanswered=tally.unanswered,
                baselines=_baselines(tally, favourite, split),
            )
            for split, tally in self._tallies.items()
            if tally.tasks
        )


def _baselines(tally: _Tally, favourite: int | None, split: Split) -> tuple[Baseline, ...]:
    if not tally.answered:
        return ()
    scores: dict[Rule, float] = {"random": tally.random}
    if favourite is not None:
        scores["train_letter"] = tally.letters[favourite]
    scores |= {
        "own_letter": max(tally.letters),
        "longest": tally.longest,
        "shortest": tally.shortest,
        "first": tally.letters[0],
    }
    return tuple(
        Baseline(
            rule=rule,
            right=round(right, 4),
            within=round(right / tally.answered, 6),
            whole=round(right / tally.tasks, 6),
            chance=round(_chance(tally, right, _tries(rule, split, tally)), 6),
            flagged=right / tally.answered > tally.random / tally.answered + MARGIN + 1e-9,
        )
        for rule, right in scores.items()
    )


def _tries(rule: Rule, split: Split, tally: _Tally) -> int:
    """Letters of which a rule takes the best on this very split; 0 for random itself."""
    if rule == "random":
        return 0
    chosen = rule == "own_letter" or (rule == "train_letter" and split == "train")
    return tally.most_options if chosen else 1


def _chance(tally: _Tally, right: float, tries: int) -> float:
    """Probability that random letters are right at least so often in the best of some tries (Bonferroni).

    Binomial at the mean share, or normal for many tasks.
    """
    return min(1.0, tries * _tail(tally, right)) if tries else 1.0


def _tail(tally: _Tally, right: float) -> float:
    least = math.floor(right + 1e-9)
    share = tally.random / tally.answered
    if tally.answered <= _EXACT:
        return min(1.0, sum(_binomial(tally.answered, k, share) for k in range(least, tally.answered + 1)))
    deviation = math.sqrt(tally.variance)
    return 0.5 * math.erfc((least - 0.5 - tally.random) / (deviation * math.sqrt(2)))


def _binomial(n: int, k: int, p: float) -> float:
    if p >= 1.0:
        return float(k == n)
    logarithm = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(logarithm + k * math.log(p) + (n - k) * math.log1p(-p))
