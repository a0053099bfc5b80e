"""What the splits share: declared groups, passages found by shingles, rare names, equal tasks (DATA-03).

Works on the arrays of `verifier/audit/gather.py`. Must not know texts.
"""

from itertools import combinations, combinations_with_replacement
from typing import Final

import numpy as np

from verifier.audit.gather import Gathered
from verifier.audit.hashing import Bools
from verifier.audit.model import SPLIT_ORDER, Duplicates, Overlap, Pairs, Shared
from verifier.audit.runs import Indices, Runs

PASSAGE: Final = 20
"""Shared shingles that make a passage: 27 words in a row."""
NEARLY_ALL: Final = 0.8
"""Share of the shorter question's shingles that makes two short questions one."""
FEWEST: Final = 4
"""Shared shingles below which two short questions are not compared."""
TEMPLATE_SHARE: Final = 0.25
"""A shingle in more than this share of a subtopic's tasks is the subtopic's own wording."""
TEMPLATE_TASKS: Final = 10
"""But not before it is in so many tasks."""
COMMON_SHARE: Final = 0.8
"""A shingle or a name in so many of a subtopic's tasks is its wording too."""
FEWEST_TASKS: Final = 3
"""But not where the subtopic has fewer tasks."""
TOO_FREQUENT: Final = 1000
"""A shingle in more tasks than this says nothing about any two of them."""
RARE: Final = 10
"""A name in more tasks than this, or one in a thousand, is not rare."""
PAIR_BUDGET: Final = 4_000_000
EXAMPLES: Final = 10

_SPLITS: Final = len(SPLIT_ORDER)
_LOW: Final = 0xFFFFFFFF


def overlap(gathered: Gathered) -> tuple[Overlap, tuple[str, ...]]:
    """The overlaps between splits, and in words what was left out to stay small."""
    limits: list[str] = []
    passages, cut = _passages(gathered)
    if cut:
        limits.append(f"passages: shingles in {cut} and more tasks were left out")
    for what, sketch in (("passages", gathered.shingles), ("names", gathered.names)):
        if sketch.scale > 1:
            limits.append(f"{what}: one in {sketch.scale} was looked at")
    rare = max(RARE, len(gathered.ids) // 1000)
    names = Runs.of(*gathered.names.sorted())
    result = Overlap(
        groups=_shared(gathered, Runs.sorting(gathered.groups)),
        passages=passages,
        entities=_shared(gathered, names.only((names.sizes <= rare) & ~_templates(gathered, names))),
    )
    return result, tuple(limits)


def duplicates(gathered: Gathered) -> Duplicates:
    """Equal tasks within and across splits."""
    content = gathered.questions * np.uint64(3) + gathered.options
    equal = Runs.sorting(content)
    counts = equal.counts(gathered.splits, _SPLITS)
    # What is equal and declared as one group is equal in both.
    declared = Runs.sorting(content * np.uint64(5) + gathered.groups).counts(gathered.splits, _SPLITS)
    same: list[Pairs] = []
    for one, other in combinations_with_replacement(range(_SPLITS), 2):
        number = _pair_count(counts, one, other)
        if number:
            found = np.flatnonzero((counts[:, one] > 0) & (counts[:, other] > int(one == other)))
            same.append(
                Pairs(
                    one=SPLIT_ORDER[one],
                    other=SPLIT_ORDER[other],
                    pairs=number,
                    tasks=int(counts[found, other].sum()),
                    undeclared=number - _pair_count(declared, one, other),
                    examples=_examples(gathered, equal, found[:EXAMPLES], one, other),
                )
            )
    listed = gathered.options[gathered.options != 0]
    return Duplicates(
        same=tuple(same),
        questions=len(Runs.sorting(gathered.questions)),
        option_sets=len(Runs.sorting(listed)),
    )


def _passages(gathered: Gathered) -> tuple[tuple[Pairs, ...], int]:
    """Pairs of tasks in two splits that share a passage; and the size of runs at which the search ended."""
    hashes, owners = gathered.shingles.sorted()
    runs = Runs.of(hashes, owners)
    template = _templates(gathered, runs)
    own = np.bincount(owners, minlength=len(gathered.ids))
    own -= np.bincount(runs.only(template).members()[1], minlength=len(gathered.ids))
    del hashes
    parts: list[Indices] = [np.zeros(0, np.int64)]
    total, cut = 0, 0
    for size, first, second in runs.only(~template).pairs():
        if total > PAIR_BUDGET:
            cut = size
            break
        apart = gathered.splits[first] != gathered.splits[second]
        parts.append((first[apart] << 32) | second[apart])
        total += len(parts[-1])
    keys, shared = np.unique(np.concatenate(parts), return_counts=True)
    first, second = keys >> 32, keys & _LOW
    shorter = np.minimum(own[first], own[second])
    passage = shared * gathered.shingles.scale >= PASSAGE
    alike = (shared >= FEWEST) & (shared >= NEARLY_ALL * shorter)
    found = passage | alike
    return _by_splits(gathered, first[found], second[found], shared[found]), cut


def _templates(gathered: Gathered, runs: Runs) -> Bools:
    """Which runs of equal hashes are a subtopic's own wording, or too frequent to tell anything."""
    dropped = runs.sizes > TOO_FREQUENT
    often = np.flatnonzero((runs.sizes >= FEWEST_TASKS) & ~dropped)
    if len(often):
        tasks = np.bincount(gathered.subtopics)
        number = len(tasks)
        of_run, owners = runs.only(np.isin(np.arange(len(runs)), often)).members()
        cells = of_run * number + gathered.subtopics[owners].astype(np.int64)
        cells, found = np.unique(cells, return_counts=True)
        size = tasks[cells % number]
        wording = found > np.maximum(TEMPLATE_TASKS, TEMPLATE_SHARE * size)
        wording |= (found >= COMMON_SHARE * size) & (size >= FEWEST_TASKS)
        dropped[often[cells[wording] // number]] = True
    return dropped


def _by_splits(gathered: Gathered, first: Indices, second: Indices, shared: Indices) -> tuple[Pairs, ...]:
    """The pairs sorted by which splits they join."""
    result: list[Pairs] = []
    swap = gathered.splits[first] > gathered.splits[second]
    first, second = np.where(swap, second, first), np.where(swap, first, second)
    undeclared = gathered.groups[first] != gathered.groups[second]
    for one, other in combinations(range(_SPLITS), 2):
        chosen = np.flatnonzero((gathered.splits[first] == one) & (gathered.splits[second] == other))
        if len(chosen):
            best = chosen[np.lexsort((chosen, -shared[chosen], ~undeclared[chosen]))][:EXAMPLES]
            result.append(
                Pairs(
                    one=SPLIT_ORDER[one],
                    other=SPLIT_ORDER[other],
                    pairs=len(chosen),
                    tasks=len(np.unique(second[chosen])),
                    undeclared=int(undeclared[chosen].sum()),
                    examples=tuple((gathered.ids[int(first[k])], gathered.ids[int(second[k])]) for k in best),
                )
            )
    return tuple(result)


def _shared(gathered: Gathered, runs: Runs) -> tuple[Shared, ...]:
    """Runs that reach over two splits."""
    counts = runs.counts(gathered.splits, _SPLITS)
    result: list[Shared] = []
    for one, other in combinations(range(_SPLITS), 2):
        found = np.flatnonzero((counts[:, one] > 0) & (counts[:, other] > 0))
        if len(found):
            members = runs.only(np.isin(np.arange(len(runs)), found)).members()[1]
            rarest = found[np.argsort(runs.sizes[found], kind="stable")][: 10 * EXAMPLES]
            result.append(
                Shared(
                    one=SPLIT_ORDER[one],
                    other=SPLIT_ORDER[other],
                    count=len(found),
                    tasks=len(np.unique(members[gathered.splits[members] == other])),
                    examples=_examples(gathered, runs, rarest, one, other),
                )
            )
    return tuple(result)


def _pair_count(counts: Indices, one: int, other: int) -> int:
    if one == other:
        return int((counts[:, one] * (counts[:, one] - 1) // 2).sum())
    return int((counts[:, one] * counts[:, other]).sum())


def _examples(
    gathered: Gathered, runs: Runs, chosen: Indices, one: int, other: int
) -> tuple[tuple[str, str], ...]:
    """One pair of ids out of each run, each pair once."""
    pairs: list[tuple[str, str]] = []
    for run in chosen.tolist():
        owners = runs.owners[runs.starts[run] : runs.starts[run] + runs.sizes[run]]
        first = owners[gathered.splits[owners] == one]
        second = owners[gathered.splits[owners] == other]
        pairs.append((gathered.ids[int(first[0])], gathered.ids[int(second[1 if one == other else 0])]))
    return tuple(dict.fromkeys(pairs))[:EXAMPLES]
