"""Delimited text files: which delimiter, columns with types and a first cell, rows counted or estimated.

Must not know other kinds of files.
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from typing import Final

from verifier.inventory.content import Content
from verifier.inventory.model import Column, ColumnType

MOST_COLUMNS: Final = 200
"""Columns that are listed: the list goes into every task."""
EXAMPLE_LENGTH: Final = 80
SUFFIXES: Final = {".tsv": "\t", ".tab": "\t", ".csv": ","}
_CANDIDATES: Final = "\t,;|"
_SNIFFED_LINES: Final = 20
_MOST_COMMENTS: Final = 10_000


class NotATable(Exception):
    """Why a file cannot be read as a table."""


def read_table(content: Content) -> tuple[int, str, tuple[Column, ...], list[str]]:
    """Rows, delimiter, columns and remarks. Raises NotATable."""
    if not content.is_text:
        raise NotATable("unreadable as a table: NUL bytes")
    text, remarks = _decoded(content.whole_lines())
    text, comments = _without_comments(text)
    if comments:
        remarks.append(f"after {comments} lines of comment that begin with #")
    delimiter = sniff(text, SUFFIXES.get(content.suffix, "\t"))
    try:
        rows, columns, all_columns = _scan(text, delimiter)
    except csv.Error as error:
        raise NotATable(f"unreadable as a table: {error}") from None
    number, estimated = content.about(rows)
    if estimated:
        remarks.append(f"rows: {estimated}")
    if all_columns > len(columns):
        remarks.append(f"{all_columns} columns, of which the first {len(columns)} are listed")
    return number, delimiter, columns, remarks


def sniff(text: str, usual: str) -> str:
    """The delimiter that the first lines agree on, else the usual one of the file's suffix."""
    lines = [line[:65536] for line in text[: 1 << 20].split("\n", _SNIFFED_LINES)[:_SNIFFED_LINES] if line]
    for candidate in (usual, *_CANDIDATES):
        counts = {line.count(candidate) for line in lines}
        if len(counts) == 1 and counts != {0}:
            return candidate
    if lines and usual not in lines[0]:
        return max(_CANDIDATES, key=lines[0].count) if any(c in lines[0] for c in _CANDIDATES) else usual
    return usual


def _decoded(data: bytes) -> tuple[str, list[str]]:
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        return data.decode("latin-1"), ["not UTF-8, read as Latin-1"]


def _without_comments(text: str) -> tuple[str, int]:
    """The text from its header on, and how many lines before it are comments; a header may begin with #."""
    start, count = 0, 0
    while text.startswith("#", start) and count < _MOST_COMMENTS:
        end = text.find("\n", start) + 1
        if end == 0 or _alike(text[start:end], text[end : end + 65536].partition("\n")[0]):
            break
        start, count = end, count + 1
    return text[start:], count


def _alike(line: str, following: str) -> bool:
    """Whether a line that begins with # has the cells of the line after it: then it is the header."""
    return any(line.count(mark) == following.count(mark) > 0 for mark in "\t,")


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    # A tab-separated file has no quoting: its cells may hold bare quotes.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    lines = io.StringIO(text, newline="")
    yield from (row for row in csv.reader(lines, delimiter=delimiter, quoting=quoting) if row)


def _scan(text: str, delimiter: str) -> tuple[int, tuple[Column, ...], int]:
    rows = _rows(text, delimiter)
    names = next(rows, list[str]())
    header = names[:MOST_COLUMNS]
    types: list[ColumnType | None] = [None] * len(header)
    first: Sequence[str] = []
    count = 0
    for row in rows:
        count += 1
        first = first or row
        for index, cell in enumerate(row[: len(header)]):
            if cell and types[index] != "text":
                types[index] = _wider(types[index], _cell_type(cell))
    cells = [*first[: len(header)], *[""] * (len(header) - len(first))]
    columns = tuple(
        Column(name=name[: 4 * EXAMPLE_LENGTH], type=kind or "text", example=cell[:EXAMPLE_LENGTH])
        for name, kind, cell in zip(header, types, cells, strict=True)
    )
    return count, columns, len(names)


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
