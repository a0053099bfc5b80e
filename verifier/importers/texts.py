"""Rows of text files with their places: JSON lines, and tables with a header.

A file that is no such file raises ReleaseError; a row that is broken is given as its Problem. A byte order
mark at the start of a file and CRLF line ends are read as if they were not there. Knows no benchmark.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import orjson

from verifier.importers.base import MAX_ROW_BYTES, Problem, unknown_fields
from verifier.layout import ReleaseError

_MARK: Final = b"\xef\xbb\xbf"
_CHUNK: Final = 1 << 20


def json_rows(path: Path, name: str, known: Sequence[str]) -> Iterator[tuple[str, dict[str, Any] | Problem]]:
    """Each object of a JSON lines file with its place, `name` standing for the file in places.

    Raises ReleaseError when there is no row at all or a field that is not known.
    """
    empty = True
    for number, line in numbered_lines(path):
        where = f"{name} row {number}"
        if line is None:
            yield where, Problem("malformed-row", where, f"longer than {MAX_ROW_BYTES >> 20} MiB")
            empty = False
        elif line.strip():
            row = _json_object(line, where)
            if isinstance(row, dict):
                unknown_fields(tuple(row), known, where)
            yield where, row
            empty = False
    if empty:
        raise ReleaseError(f"{name}: the file is empty; it should hold one JSON object a line")


def table_rows(
    path: Path, name: str, columns: Sequence[str], delimiter: str
) -> Iterator[tuple[str, dict[str, str] | Problem]]:
    """Each row of a delimited table with exactly these columns, in any order; row 1 follows the header.

    Raises ReleaseError for another header, text that is not UTF-8, or quotes that do not close.
    """
    reader = csv.reader(_decoded_lines(path, name), delimiter=delimiter, strict=True)
    number = 0
    try:
        header = next(reader, None)
        if not header:
            raise ReleaseError(f"{name}: the file is empty; it should have the columns {', '.join(columns)}")
        unknown_fields(header, columns, f"{name} header")
        missing = sorted(set(columns) - set(header))
        if missing or len(header) != len(columns):
            said = f"no column {missing[0]!r}" if missing else "a column twice"
            raise ReleaseError(f"{name} header: {said}; it should have {', '.join(columns)}")
        for number, cells in enumerate(reader, 1):
            where = f"{name} row {number}"
            if len(cells) == len(header):
                yield where, dict(zip(header, cells, strict=True))
            else:
                why = f"{len(cells)} columns, and the header has {len(header)}"
                yield where, Problem("malformed-row", where, why)
    except csv.Error as error:
        raise ReleaseError(f"{name} row {number + 1}: {error}") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines, None for one that is too long to be a row. Never more than one in memory."""
    try:
        with path.open("rb") as handle:
            number = 0
            while line := handle.readline(MAX_ROW_BYTES + 1):
                number += 1
                if number == 1:
                    line = line.removeprefix(_MARK)
                if len(line) <= MAX_ROW_BYTES:
                    yield number, line
                    continue
                while line and not line.endswith(b"\n"):
                    line = handle.readline(_CHUNK)
                yield number, None
    except OSError as error:
        raise ReleaseError(f"{path}: {error.strerror}") from None


def _json_object(line: bytes, where: str) -> dict[str, Any] | Problem:
    try:
        value: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        # The message names a column and never quotes the line, which holds an answer.
        return Problem("malformed-row", where, f"no JSON object ({error.msg}, column {error.colno})")
    if not isinstance(value, dict):
        return Problem("malformed-row", where, "a JSON value, but no object")
    return cast("dict[str, Any]", value)


def _decoded_lines(path: Path, name: str) -> Iterator[str]:
    for number, line in numbered_lines(path):
        if line is None:
            raise ReleaseError(f"{name} line {number}: longer than {MAX_ROW_BYTES >> 20} MiB")
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            byte = f"byte {error.start + 1} (0x{line[error.start]:02x})"
            raise ReleaseError(f"{name} line {number}: {byte} is not UTF-8; save the file as UTF-8") from None
