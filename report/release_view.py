"""A release or a draft in the terminal: what it holds, where it comes from, and what was left out.

Reads public parts alone, as a stream: a release of a million tasks is shown in the memory of one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from verifier.draft import HEADER as DRAFT
from verifier.draft import Draft
from verifier.layout import SPLITS, Import, read_header, stream_tasks

Cell = tuple[str, str, str]
"""Family, subtopic, split; the split is empty for a task that has none yet."""

_MOST_DROPPED: Final = 10


def show_folder(folder: Path, console: Console) -> None:
    """Print a release or a draft. Raises ReleaseError when the folder is neither."""
    if (folder / DRAFT).is_file():
        _show_draft(Draft(folder), console)
    else:
        _show_release(folder, console)


def _show_draft(draft: Draft, console: Console) -> None:
    header, splits = draft.header, draft.splits()
    cells = ((item.family, item.subtopic, splits.get(item.id, "")) for item in draft.questions())
    _say(console, f"draft {draft.root}: {sum(header.counts.values())} tasks, {len(splits)} with a split")
    _show(console, cells, header.licences, header.sources, header.notes, header.no_training, header.imports)
    if header.split_rule:
        _say(console, f"splits: {header.split_rule}")


def _show_release(folder: Path, console: Console) -> None:
    header = read_header(folder)
    cells = ((task.family, task.subtopic, task.split) for task in stream_tasks(folder, header))
    _say(console, f"release {header.name} {header.digest}")
    licences, size = (header.licence,), sum(entry.size for entry in header.payload.values())
    _show(console, cells, licences, header.sources, header.notes, header.no_training, header.imports)
    if header.split_rule:
        _say(console, f"splits: {header.split_rule}")
    lake = [name.removeprefix("lake/") for name in header.payload if name.startswith("lake/")]
    _say(console, f"lake: {', '.join(lake[:20]) or 'none'}{' and more' if len(lake) > 20 else ''}")
    _say(console, f"{len(header.payload)} files, {size:,} bytes; contents not checked: rinr release verify")


def _show(
    console: Console,
    cells: Iterable[Cell],
    licences: Sequence[str],
    sources: Sequence[str],
    notes: Sequence[str],
    no_training: bool,
    imports: Sequence[Import],
) -> None:
    console.print(counts_table(cells))
    _say(console, f"licence: {' AND '.join(licences) or 'none stated'}")
    for what, lines in (("source", sources), ("note", notes)):
        for line in lines:
            _say(console, f"{what}: {line}")
    if no_training:
        _say(console, "the sources ask not to enter training corpora: reports will say so")
    for record in imports:
        _say(console, f"import {record.importer}: {record.tasks} tasks of {record.rows} rows")
        _say(console, f"  fingerprint {record.fingerprint}")
        for row in record.dropped[:_MOST_DROPPED]:
            _say(console, f"  left out ({row.kind}): {row.where}: {row.why}")
        if len(record.dropped) > _MOST_DROPPED:
            _say(console, f"  and {len(record.dropped) - _MOST_DROPPED} more left out")


def _say(console: Console, line: str) -> None:
    # A digest or a path is for copying: it is never broken over lines, and brackets in it are no markup.
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def counts_table(cells: Iterable[Cell]) -> Table:
    """Tasks by family and subtopic, a column a split; one for tasks without a split where there are any."""
    counts = Counter(cells)
    columns = [*SPLITS, *([""] if any(split == "" for _, _, split in counts) else [])]
    table = Table("family", "subtopic", *(column or "no split" for column in columns), "all")
    for family, subtopic in sorted({(family, subtopic) for family, subtopic, _ in counts}):
        row = [counts[(family, subtopic, column)] for column in columns]
        table.add_row(family, subtopic, *map(str, row), str(sum(row)))
    totals = [sum(n for (_, _, split), n in counts.items() if split == column) for column in columns]
    table.add_section()
    table.add_row("all", "", *map(str, totals), str(sum(totals)))
    return table
