"""The paper's collection of tasks in numbers: its families, and how a draft or a release differs from it.

The list of its 895 task ids is not public. So nothing is called by its name unless an id list was given and
every count agrees (DATA-01). Must not know how tasks are read or split.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from verifier.draft import Draft
from verifier.importers import biomni, lab_bench
from verifier.layout import SPLITS, ReleaseError
from verifier.release import Release
from verifier.task import Split

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "DbQA": tuple(name for stem, name in lab_bench.SUBTOPICS.items() if stem not in ("litqa", "protocolqa")),
    "GWAS": (*(f"causal_gene_{source}" for source in biomni.SOURCES), biomni.VARIANT),
    "LitQA2": (lab_bench.SUBTOPICS["litqa"],),
    "ProtocolQA": (lab_bench.SUBTOPICS["protocolqa"],),
}
"""Its 16 subtopics by family, as the importers call them."""

COUNTS: Final[Mapping[str, Mapping[Split, int]]] = {
    "DbQA": {"train": 411, "val": 50, "test": 50},
    "GWAS": {"train": 140, "val": 20, "test": 20},
    "LitQA2": {"train": 76, "val": 10, "test": 10},
    "ProtocolQA": {"train": 88, "val": 10, "test": 10},
}
"""Its tasks by family and split: 715, 90 and 90."""

_ITS_NAME: Final = re.compile(r"scibuddy|science[-_. ]?buddy")


@dataclass(frozen=True)
class Difference:
    """One family, or all of them, in one split or in all."""

    family: str
    split: Split | None
    paper: int
    here: int

    @property
    def by(self) -> int:
        return self.here - self.paper


def differences(source: Draft | Release) -> tuple[Difference, ...]:
    """Every family of the paper and of the source by split, then in all.

    Tasks that a split left out do not count; in a draft without splits all tasks count, in all alone.
    """
    here = Counter(_placed(source))
    families = [*COUNTS, *sorted({family for family, _ in here} - COUNTS.keys())]
    rows = [
        Difference(family, split, COUNTS.get(family, {}).get(split, 0), here[family, split])
        for family in families
        for split in SPLITS
    ]
    totals = [
        Difference(
            family,
            None,
            sum(COUNTS.get(family, {}).values()),
            sum(n for (name, _), n in here.items() if name == family),
        )
        for family in families
    ]
    return (*rows, *totals)


def difference_table(source: Draft | Release) -> Table:
    """The paper's counts beside those here, a row a family; what differs shows by how much."""
    found = {(row.family, row.split): row for row in differences(source)}
    dealt = any(row.here for row in found.values() if row.split is not None)
    columns: tuple[Split | None, ...] = (*SPLITS, None) if dealt else (None,)
    table = Table(title="tasks here (and against the paper's collection)")
    table.add_column("family")
    for split in columns:
        table.add_column(split or "all", justify="right")
    for family in dict.fromkeys(family for family, _ in found):
        table.add_row(family, *(_cell(found[family, split]) for split in columns))
    table.add_section()
    everything = [[row for (_, at), row in found.items() if at == split] for split in columns]
    sums = [(sum(row.paper for row in rows), sum(row.here for row in rows)) for rows in everything]
    table.add_row("all", *(_cell(Difference("all", None, *pair)) for pair in sums))
    return table


def _placed(source: Draft | Release) -> Iterator[tuple[str, Split | None]]:
    """Family and split of each task that counts."""
    if isinstance(source, Release):
        for task in source.tasks:
            yield task.family, task.split
        return
    splits = source.splits()
    for question in source.questions():
        split = splits.get(question.id)
        if split is not None or not splits:
            yield question.family, split


def check_name(name: str, draft: Draft) -> None:
    """ReleaseError for the name of the paper's collection unless an id list was followed and counts agree."""
    if not _ITS_NAME.search(name.casefold()):
        return
    other = next((row for row in differences(draft) if row.by), None)
    if other is not None:
        where = f"{other.family} {other.split or 'in all'}"
        raise ReleaseError(
            f"release {name!r}: the paper's collection has {other.paper} tasks of {where}, and here are "
            f"{other.here}; choose a name of your own"
        )
    if not draft.header.split_rule.startswith("id list "):
        raise ReleaseError(
            f"release {name!r}: the counts are the paper's, but no id list says that the tasks are; "
            "choose a name of your own"
        )


def _cell(row: Difference) -> str:
    return f"{row.here}" if not row.by else f"{row.here} ({row.by:+d})"
