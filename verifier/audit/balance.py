"""How families and subtopics are spread over the splits. Must not know single tasks."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from verifier.audit.gather import Gathered
from verifier.audit.model import SPLIT_ORDER, Balance, Distance, SubtopicCount
from verifier.task import Split


def balance(gathered: Gathered) -> Balance:
    """Counts, distances, and whether every split has its share of every subtopic."""
    counts = _counts(gathered)
    totals: dict[Split, int] = {split: sum(row.of(split) for row in counts) for split in SPLIT_ORDER}
    present: list[Split] = [split for split in SPLIT_ORDER if totals[split]]
    worst, where = _deviation(counts, totals, slack=max(1, _largest_group(gathered)))
    return Balance(
        counts=counts,
        distances=tuple(
            Distance(
                one=one,
                other=other,
                families=_distance(_by_family(counts, one), _by_family(counts, other)),
                subtopics=_distance(_by_subtopic(counts, one), _by_subtopic(counts, other)),
            )
            for one, other in combinations(present, 2)
        ),
        stratified=worst <= 0,
        largest_deviation=where,
    )


def _counts(gathered: Gathered) -> tuple[SubtopicCount, ...]:
    width = len(SPLIT_ORDER)
    cells = np.bincount(
        gathered.subtopics.astype(np.int64) * width + gathered.splits,
        minlength=width * len(gathered.subtopic_names),
    ).reshape(-1, width)
    rows = [
        SubtopicCount(family=family, subtopic=subtopic, train=int(row[0]), val=int(row[1]), test=int(row[2]))
        for (family, subtopic), row in zip(gathered.subtopic_names, cells, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (row.family, row.subtopic)))


def _largest_group(gathered: Gathered) -> int:
    """Tasks of the largest material group."""
    return int(np.unique(gathered.groups, return_counts=True)[1].max())


def _deviation(counts: Sequence[SubtopicCount], totals: Mapping[Split, int], slack: int) -> tuple[float, str]:
    """How far the worst cell is out of proportion beyond `slack` tasks, and which it is."""
    everything = sum(totals.values())
    worst, where = 0.0, ""
    for row in counts:
        share = sum(row.of(split) for split in SPLIT_ORDER) / everything
        for split in SPLIT_ORDER:
            wanted = share * totals[split]
            beyond = abs(row.of(split) - wanted) - slack
            if beyond > worst + 1e-9:
                worst = beyond
                where = (
                    f"{row.family}/{row.subtopic} has {row.of(split)} of {totals[split]} {split} tasks, "
                    f"in proportion it would have {wanted:.1f}"
                )
    return worst, where


def _by_subtopic(counts: Sequence[SubtopicCount], split: Split) -> dict[str, int]:
    return {f"{row.family}/{row.subtopic}": row.of(split) for row in counts}


def _by_family(counts: Sequence[SubtopicCount], split: Split) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in counts:
        sums[row.family] = sums.get(row.family, 0) + row.of(split)
    return sums


def _distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Total variation distance of two sets of counts with the same names."""
    first, second = sum(one.values()), sum(other.values())
    return round(sum(abs(one[name] / first - other[name] / second) for name in one) / 2, 6)
