"""The public inventory of a release's data lake: which tables exist, their columns and first values.

Works for any folder of CSV and TSV files; an odd file is described, never fatal. Must know nothing of any
one release, and reads only public files.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

ColumnType = Literal["text", "integer", "number"]

LAKE_MOUNT: Final = "/lake"
"""Where the sandbox sees the lake, read-only."""

_EXAMPLE_LENGTH: Final = 80
_DELIMITERS: Final = {".tsv": "\t", ".csv": ","}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(_Frozen):
    name: str
    type: ColumnType
    """The narrowest type that every non-empty cell of the column has."""
    example: str
    """The column's cell in the first row, shortened; empty for a table without rows."""


class Table(_Frozen):
    path: str
    """As a program sees it, for example `/lake/genes.tsv`."""
    rows: int
    """Data rows, the header not counted."""
    delimiter: str
    """Empty for a file that is not a table."""
    columns: tuple[Column, ...]
    description: str = ""


class Inventory(_Frozen):
    """What a program may be told about its resources. Public."""

    tables: tuple[Table, ...]
    libraries: tuple[str, ...] = ()
    """Python packages of the execution environment, as `name version`."""


def read_inventory(
    lake: Path | None, *, descriptions: Mapping[str, str] | None = None, libraries: Sequence[str] = ()
) -> Inventory:
    """Describe every file under `lake`, sorted by path. `descriptions` is by path inside the lake."""
    said = descriptions or {}
    tables: list[Table] = []
    for path in sorted(lake.rglob("*")) if lake is not None else []:
        if path.is_file():
            name = path.relative_to(lake).as_posix() if lake is not None else path.name
            tables.append(_describe(path, f"{LAKE_MOUNT}/{name}", said.get(name, "")))
    return Inventory(tables=tuple(tables), libraries=tuple(libraries))


def _describe(path: Path, seen_as: str, description: str) -> Table:
    delimiter = _DELIMITERS.get(path.suffix.lower())

    def odd(what: str) -> Table:
        note = f"{description} ({what})" if description else what
        return Table(path=seen_as, rows=0, delimiter="", columns=(), description=note)

    if path.stat().st_size == 0:
        return odd("empty file")
    if delimiter is None:
        return odd(f"not a table, {path.stat().st_size} bytes")
    try:
        rows, columns = _scan(path, delimiter)
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        return odd(f"unreadable as a table: {error}")
    return Table(path=seen_as, rows=rows, delimiter=delimiter, columns=columns, description=description)


def _rows(path: Path, delimiter: str) -> Iterator[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as handle:
        # A tab-separated file has no quoting: its cells may hold bare quotes.
        quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
        yield from (row for row in csv.reader(handle, delimiter=delimiter, quoting=quoting) if row)


def _scan(path: Path, delimiter: str) -> tuple[int, tuple[Column, ...]]:
    rows = _rows(path, delimiter)
    header = next(rows, list[str]())
    types: list[ColumnType | None] = [None] * len(header)
    first: list[str] = []
    count = 0
    for row in rows:
        count += 1
        first = first or row
        for index, cell in enumerate(row[: len(header)]):
            if cell and types[index] != "text":
                types[index] = _wider(types[index], _cell_type(cell))
    first += [""] * (len(header) - len(first))
    columns = tuple(
        Column(name=name, type=kind or "text", example=cell[:_EXAMPLE_LENGTH])
        for name, kind, cell in zip(header, types, first, strict=False)
    )
    return count, columns


def _cell_type(cell: str) -> ColumnType:
    digits = cell.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        return "integer"
    try:
        return "number" if math.isfinite(float(cell)) else "text"
    except ValueError:
        return "text"


def _wider(known: ColumnType | None, seen: ColumnType) -> ColumnType:
    if known is None or known == seen:
        return seen
    return "text" if "text" in (known, seen) else "number"
