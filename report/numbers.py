"""Small exact statistics for reading a result: intervals of a share, paired tables, times in words.

Nothing here selects or decides; the numbers stand beside recorded measurements only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb, sqrt
from typing import Final

_Z95: Final = 1.959963984540054


def wilson(correct: int, total: int) -> tuple[float, float]:
    """Wilson 95 % interval of `correct / total`, both ends in [0, 1]; (0, 1) when nothing was measured."""
    if total <= 0:
        return (0.0, 1.0)
    share, square = correct / total, _Z95 * _Z95
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = _Z95 * sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    # The share lies inside by theory, but not always by floating point.
    return (max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def mcnemar(fixed: int, broken: int) -> float:
    """Exact two-sided McNemar p of `fixed` against `broken` discordant pairs; 1.0 when there are none."""
    discordant = fixed + broken
    tail = sum(comb(discordant, index) for index in range(min(fixed, broken) + 1))
    return min(1.0, 2 * tail / 2**discordant)


@dataclass(frozen=True, slots=True)
class Paired:
    """Two measurements of the same tasks, task by task."""

    both: int
    fixed: int
    """Wrong before, right after."""
    broken: int
    """Right before, wrong after."""
    neither: int

    @property
    def p_value(self) -> float:
        return mcnemar(self.fixed, self.broken)


def pair(before: Mapping[str, bool], after: Mapping[str, bool]) -> Paired | None:
    """The 2x2 table of two sets of outcomes by task id, or None when they do not cover the same tasks."""
    if not before or before.keys() != after.keys():
        return None
    cells = [(before[task], after[task]) for task in before]
    return Paired(
        both=cells.count((True, True)),
        fixed=cells.count((False, True)),
        broken=cells.count((True, False)),
        neither=cells.count((False, False)),
    )


def duration(seconds: float) -> str:
    """Seconds in words: `4.2 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def percent(share: float | None) -> str:
    """A share with one decimal, or a dash when there is nothing to divide by."""
    return "–" if share is None else f"{100 * share:.1f} %"
