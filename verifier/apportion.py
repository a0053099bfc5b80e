"""Dealing groups to bins: whole groups, strata in proportion, sizes as near as groups allow.

A stratum is a set of groups with the same subtopics. Every choice hangs on sizes and on keys that are
digests, so the order in which groups come changes nothing. Knows no tasks, files or names of splits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_KEYS: Final = 1 << 64


@dataclass(frozen=True)
class Stratum:
    """Groups by index, in no order, and how many subtopics they touch."""

    groups: Sequence[int]
    size: int
    """Tasks in them."""
    breadth: int
    name: str
    """Decides ties."""


@dataclass
class Dealt:
    """Bin by group, and what each bin is short of (negative: has too much)."""

    bins: bytearray
    short: list[int] = field(default_factory=list[int])


def largest_remainder(
    total: int, weights: Sequence[int], least: Sequence[int], most: Sequence[int]
) -> list[int]:
    """Whole numbers that add up to `total`, in proportion to the weights, each between `least` and `most`.

    Hamilton's method with bounds; equal remainders go to the earlier index. ValueError if the bounds forbid
    the total.
    """
    if not sum(least) <= total <= sum(most):
        raise ValueError(f"{total} is not between {sum(least)} and {sum(most)}")
    everything = sum(weights)
    ideal = [total * weight / everything if everything else 0.0 for weight in weights]
    given = [min(max(int(i), low), high) for i, low, high in zip(ideal, least, most, strict=True)]
    while (missing := total - sum(given)) != 0:
        step = 1 if missing > 0 else -1
        bounds = most if step > 0 else least
        open_to = [index for index in range(len(given)) if given[index] != bounds[index]]
        open_to.sort(key=lambda index: (step * (given[index] - ideal[index]), index))
        for index in open_to[: abs(missing)]:
            given[index] += step
    return given


def deal(
    strata: Sequence[Stratum], wanted: Sequence[int], sizes: Sequence[int], keys: Sequence[int]
) -> Dealt:
    """Give every group to a bin. `wanted` are tasks by bin and add up to all tasks; the last bin is the rest.

    `sizes` and `keys` (below 2^64) are by group. Each stratum is dealt in proportion; a stratum with at least
    as many groups as there are bins before the last has a group in each of those, as far as they want as
    many tasks as there are such strata, those of few subtopics first.
    """
    quotas, present = _quotas(strata, wanted)
    dealt = Dealt(bytearray(len(sizes)), [0] * len(wanted))
    # Strata that can fill up what others left open come last.
    singles = [sum(sizes[group] == 1 for group in stratum.groups) for stratum in strata]
    for index in sorted(range(len(strata)), key=lambda index: (singles[index], strata[index].name)):
        quota = _with_debts(quotas[index], dealt.short, present[index])
        ordered = sorted(strata[index].groups, key=lambda group: (-sizes[group], keys[group]))
        _deal_stratum(ordered, quota, present[index], (sizes, keys), dealt.bins)
        dealt.short = [old + left for old, left in zip(dealt.short, quota, strict=True)]
    return dealt


def _quotas(strata: Sequence[Stratum], wanted: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Tasks by stratum and bin, and where at least one group must go."""
    bins = len(wanted) - 1
    order = sorted(range(len(strata)), key=lambda i: (strata[i].breadth, -strata[i].size, strata[i].name))
    asked = [index for index in range(bins) if wanted[index]]
    able = [index for index in order if len(strata[index].groups) >= len(asked)]
    present = [[0] * len(wanted) for _ in strata]
    for split in asked:
        for index in able[: wanted[split]]:
            present[index][split] = 1
    quotas = [[0] * len(wanted) for _ in strata]
    room = [stratum.size for stratum in strata]
    weights = [strata[index].size for index in order]
    # The smallest bins first: they have the least to give way.
    later = sorted(asked, key=lambda split: (wanted[split], -split))
    while later:
        split = later.pop(0)
        least = [present[index][split] for index in order]
        most = [room[index] - sum(present[index][other] for other in later) for index in order]
        for index, given in zip(order, largest_remainder(wanted[split], weights, least, most), strict=True):
            quotas[index][split] = given
            room[index] -= given
    for index, rest in enumerate(room):
        quotas[index][-1] = rest
    return quotas, present


def _with_debts(quota: Sequence[int], short: list[int], least: Sequence[int]) -> list[int]:
    """The quota after bins that have too much gave to bins that are short; `short` is paid down."""
    changed = list(quota)
    for poor in range(len(changed)):
        for rich in range(len(changed)):
            moved = max(0, min(short[poor], -short[rich], changed[rich] - least[rich]))
            changed[poor] += moved
            changed[rich] -= moved
            short[poor] -= moved
            short[rich] += moved
    return changed


def _deal_stratum(
    ordered: Sequence[int],
    quota: list[int],
    present: Sequence[int],
    measures: tuple[Sequence[int], Sequence[int]],
    bins: bytearray,
) -> None:
    """Deal groups, largest first, and pay them from `quota`."""
    sizes, keys = measures
    seated: set[int] = set()
    for split in sorted((s for s, needed in enumerate(present) if needed), key=lambda s: quota[s]):
        free = [group for group in ordered if group not in seated]
        fitting = [group for group in free if sizes[group] <= quota[split]]
        group = min(fitting or free, key=lambda g: keys[g] if fitting else (sizes[g], keys[g]))
        seated.add(group)
        bins[group] = split
        quota[split] -= sizes[group]
    for group in ordered:
        if group not in seated:
            chosen = _draw(quota, sizes[group], keys[group])
            bins[group] = chosen
            quota[chosen] -= sizes[group]


def _draw(quota: Sequence[int], size: int, key: int) -> int:
    """A bin that has room for the group, by chance in proportion to its room; else the one with most room."""
    total = 0
    for room in quota:
        if room >= size:
            total += room
    if not total:
        return max(range(len(quota)), key=lambda split: (quota[split], -split))
    at = key * total // _KEYS
    for split, room in enumerate(quota):
        if room >= size:
            at -= room
            if at < 0:
                return split
    raise AssertionError("a draw lies below the total")
