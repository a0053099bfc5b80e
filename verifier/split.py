"""Splits of a draft: an id list as it is given, or tasks dealt by hash (DATA-01, DATA-03, DATA-05).

Own splits keep material groups whole unless asked otherwise, and have every subtopic in proportion. Equal
tasks, seed and sizes give equal splits, in whatever order tasks were imported. Never reads references.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import orjson

from verifier import draft as drafts
from verifier.apportion import Stratum, deal, largest_remainder
from verifier.draft import Draft
from verifier.id_list import IdList
from verifier.layout import SPLITS, ReleaseError
from verifier.task import Split

PAIRS: Final = tuple(combinations(SPLITS, 2))
_LEFT_OUT: Final = len(SPLITS)
_SHARE_UNITS: Final = 1_000_000


@dataclass(frozen=True)
class SplitResult:
    """What a split became, to be printed and judged."""

    rule: str
    """How it was made, in words; it goes into the release."""
    wanted: Mapping[Split, int]
    counts: Mapping[Split, int]
    left_out: int
    """Tasks of the draft that belong to no split and will not be in the release."""
    subtopics: Mapping[str, Mapping[Split, int]]
    """Tasks by `family/subtopic` and split."""
    shared_groups: Mapping[tuple[Split, Split], int]
    """Material groups that occur in both splits of a pair (DATA-03)."""
    warnings: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The result as a person reads it: counts, overlaps, then warnings."""
        yield "splits: " + ", ".join(f"{self.counts[split]} {split}" for split in SPLITS)
        if self.left_out:
            yield f"left out: {self.left_out} tasks"
        shared = (f"{count} {one}-{other}" for (one, other), count in self.shared_groups.items())
        yield "material groups in two splits: " + ", ".join(shared)
        yield from (f"warning: {warning}" for warning in self.warnings)


@dataclass
class _Tasks:
    """Tasks of a draft as columns, and their groups; a group is a task of its own when groups are broken."""

    ids: list[str] = field(default_factory=list[str])
    subtopics: array[int] = field(default_factory=lambda: array("H"))
    groups: array[int] = field(default_factory=lambda: array("I"))
    materials: array[int] = field(default_factory=lambda: array("I"))
    """The declared group of a task, also when groups are broken."""
    names: list[str] = field(default_factory=list[str])
    """Subtopic names by number."""
    keys: array[int] = field(default_factory=lambda: array("Q"))
    """A digest by group: its identity and its place in every order."""
    material_count: int = 0


def split_by_ids(draft: Draft, ids: IdList, *, complete: bool = False) -> SplitResult:
    """Deal the draft's tasks as the list says; tasks it does not name are left out.

    Raises ReleaseError naming ids of the list that the draft lacks and, with `complete`, the other way round.
    """
    tasks = _read(draft, seed="", break_groups=False)
    known = set(tasks.ids)
    lacking = [task_id for task_id in ids.splits if task_id not in known]
    if lacking:
        raise ReleaseError(f"{ids.name}: {_some(lacking)} of its ids are no tasks of {draft.root}")
    if complete and len(known) > len(ids.splits):
        unlisted = sorted(known - ids.splits.keys())
        raise ReleaseError(f"{ids.name} does not name {_some(unlisted)} of the tasks of {draft.root}")
    numbers: dict[Split, int] = {split: number for number, split in enumerate(SPLITS)}
    bins = bytearray(
        numbers[ids.splits[task_id]] if task_id in ids.splits else _LEFT_OUT for task_id in tasks.ids
    )
    wanted = Counter(ids.splits.values())
    rule = f"id list {ids.name} ({ids.digest}), {len(ids.splits)} of {len(tasks.ids)} tasks"
    return _finish(draft, tasks, bins, {split: wanted[split] for split in SPLITS}, rule)


def split(
    draft: Draft,
    sizes: Mapping[Split, int | float],
    *,
    seed: str = "rinr",
    break_groups: bool = False,
) -> SplitResult:
    """Deal the draft's tasks by hash, every subtopic in proportion (DATA-05), groups whole (DATA-03).

    `sizes` are counts, or shares of all tasks as floats. Raises ReleaseError when they ask for more tasks
    than there are. Counts that dealing whole groups misses are warned of.
    """
    tasks = _read(draft, seed=seed, break_groups=break_groups)
    wanted = wanted_counts(sizes, len(tasks.ids))
    group_sizes = array("I", bytes(4 * len(tasks.keys)))
    for group in tasks.groups:
        group_sizes[group] += 1
    counts = [wanted[split] for split in SPLITS]
    dealt = deal(
        _strata(tasks, group_sizes), [*counts, len(tasks.ids) - sum(counts)], group_sizes, tasks.keys
    )
    bins = bytearray(dealt.bins[group] for group in tasks.groups)
    whole = "groups broken" if break_groups else "whole groups"
    asked = ", ".join(f"{wanted[split]} {split}" for split in SPLITS)
    rule = f"by hash, seed {seed!r}, {whole}, every subtopic in proportion; asked for {asked}"
    return _finish(draft, tasks, bins, wanted, rule)


def wanted_counts(sizes: Mapping[Split, int | float], total: int) -> dict[Split, int]:
    """Counts by split: whole numbers are counts, fractions (floats) are shares of `total`.

    Raises ReleaseError for sizes that make no split of so many tasks.
    """
    given = [sizes.get(split, 0) for split in SPLITS]
    said = ", ".join(f"{split} {size}" for split, size in zip(SPLITS, given, strict=True))
    shares = any(isinstance(size, float) for size in given)
    if min(given) < 0 or not any(given):
        raise ReleaseError(f"sizes of splits are not negative and not all 0: {said}")
    if shares and (sum(given) > 1 + 1e-9 or any(size and isinstance(size, int) for size in given)):
        raise ReleaseError(f"sizes of splits are all counts, or all shares that add up to at most 1: {said}")
    if not shares and sum(given) > total:
        raise ReleaseError(f"asked for {sum(given)} tasks ({said}), and the draft has {total}")
    counts = [int(size) for size in given]
    if shares:
        weights = [round(size * _SHARE_UNITS) for size in given]
        weights.append(max(0, _SHARE_UNITS - sum(weights)))
        counts = largest_remainder(total, weights, [0] * len(weights), [total] * len(weights))
    return dict(zip(SPLITS, counts, strict=False))


def _read(draft: Draft, *, seed: str, break_groups: bool) -> _Tasks:
    """The columns of the draft's tasks. A line is parsed for four fields: a million lines pass in seconds."""
    tasks = _Tasks()
    numbers: dict[tuple[str, str], int] = {}
    groups: dict[int, int] = {}
    materials: dict[int, int] = {}
    with (draft.root / drafts.TASKS).open("rb") as handle:
        for line in handle:
            row = orjson.loads(line)
            task_id, material = row["id"], row["material_group"]
            tasks.ids.append(task_id)
            place = (row["family"], row["subtopic"])
            tasks.subtopics.append(numbers.setdefault(place, len(numbers)))
            key = _key(seed, material)
            tasks.materials.append(materials.setdefault(key, len(materials)))
            if break_groups:
                key = _key(seed, f"task {task_id}")
            tasks.groups.append(groups.setdefault(key, len(groups)))
    tasks.names = [f"{family}/{subtopic}" for family, subtopic in numbers]
    tasks.keys = array("Q", groups)
    tasks.material_count = len(materials)
    return tasks


def _key(seed: str, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}\n{name}".encode(), digest_size=8).digest(), "big")


def _strata(tasks: _Tasks, sizes: array[int]) -> list[Stratum]:
    """Groups by the set of subtopics that they touch."""
    marks = array("I", bytes(4 * len(tasks.keys)))
    # Sets of subtopics by number: few occur, and a group's set grows by one subtopic at a time.
    sets: list[frozenset[int]] = [frozenset()]
    numbers = {sets[0]: 0}
    grown: dict[tuple[int, int], int] = {}
    for group, subtopic in zip(tasks.groups, tasks.subtopics, strict=True):
        step = (marks[group], subtopic)
        if step not in grown:
            larger = sets[step[0]] | {subtopic}
            if larger not in numbers:
                numbers[larger] = len(sets)
                sets.append(larger)
            grown[step] = numbers[larger]
        marks[group] = grown[step]
    members: dict[int, array[int]] = {}
    for group, mark in enumerate(marks):
        members.setdefault(mark, array("I")).append(group)
    return [
        Stratum(
            groups=own,
            size=sum(sizes[group] for group in own),
            breadth=len(sets[mark]),
            name=" ".join(sorted(tasks.names[subtopic] for subtopic in sets[mark])),
        )
        for mark, own in members.items()
    ]


def _finish(
    draft: Draft, tasks: _Tasks, bins: bytearray, wanted: Mapping[Split, int], rule: str
) -> SplitResult:
    """Write the splits and describe them."""
    dealt = Counter(bins)
    counts: dict[Split, int] = {split: dealt[number] for number, split in enumerate(SPLITS)}
    placed = Counter(zip(tasks.subtopics, bins, strict=True))
    subtopics: dict[str, dict[Split, int]] = {
        name: {split: placed[subtopic, number] for number, split in enumerate(SPLITS)}
        for subtopic, name in sorted(enumerate(tasks.names), key=lambda pair: pair[1])
    }
    result = SplitResult(
        rule=rule,
        wanted=wanted,
        counts=counts,
        left_out=dealt[_LEFT_OUT],
        subtopics=subtopics,
        shared_groups=_shared(tasks, bins),
        warnings=tuple(_warnings(wanted, counts, subtopics)),
    )
    pairs = zip(tasks.ids, bins, strict=True)
    chosen: dict[str, Split] = {task_id: SPLITS[number] for task_id, number in pairs if number != _LEFT_OUT}
    draft.set_splits(chosen, rule, left_out=result.left_out)
    return result


def _shared(tasks: _Tasks, bins: bytearray) -> dict[tuple[Split, Split], int]:
    masks = bytearray(tasks.material_count)
    for material, number in zip(tasks.materials, bins, strict=True):
        masks[material] |= 1 << number
    number_of = {split: number for number, split in enumerate(SPLITS)}
    held = Counter(masks)
    both = {pair: (1 << number_of[pair[0]]) | (1 << number_of[pair[1]]) for pair in PAIRS}
    return {
        pair: sum(count for mask, count in held.items() if mask & bits == bits) for pair, bits in both.items()
    }


def _warnings(
    wanted: Mapping[Split, int], counts: Mapping[Split, int], subtopics: Mapping[str, Mapping[Split, int]]
) -> Iterator[str]:
    for name in SPLITS:
        if wanted[name] != counts[name]:
            yield f"{name} has {counts[name]} tasks, not {wanted[name]}: whole material groups do not fit"
        if not counts[name]:
            yield f"{name} is empty"
        used = (subtopic for subtopic, placed in subtopics.items() if any(placed.values()))
        absent = [subtopic for subtopic in used if not subtopics[subtopic][name]]
        if absent and counts[name]:
            yield f"{name} has no task of {', '.join(absent)}"
    shared = [name for name, placed in subtopics.items() if placed["val"] and placed["test"]]
    if counts["val"] and counts["test"] and not shared:
        yield "val and test have no subtopic in common: val says nothing about test"


def _some(names: list[str]) -> str:
    """How many, and the first few by name."""
    shown = ", ".join(repr(name) for name in names[:5])
    return f"{len(names)} ({shown}{', ...' if len(names) > 5 else ''})"
