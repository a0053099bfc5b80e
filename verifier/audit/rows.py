"""The rows of a lake file as text, bounded: lines of text files, also when gzipped, and rows of Parquet.

A file that has no rows or cannot be read gives its reason and never raises. Nothing is ever unpickled.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

MOST_BYTES: Final = 256 << 20
"""Bytes of one file that are searched."""
LONGEST_LINE: Final = 4 << 20
_TEXT: Final = frozenset({".bed", ".csv", ".gaf", ".gff", ".gmt", ".gtf", ".json", ".jsonl", ".md", ".obo"})
_MORE_TEXT: Final = frozenset({".ndjson", ".tab", ".tsv", ".txt", ".vcf", ".fa", ".fasta", ".xml", ".yaml"})


class _Lines(Protocol):
    def readline(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Row:
    text: str
    label: str
    """The first cell, case and white space folded, where it can name a row: several words."""


class Rows:
    """Rows of one file; `problem` and `nothing_read` are known once `rows` has ended."""

    def __init__(self, path: Path) -> None:
        self.problem = ""
        self.nothing_read = False
        self.rows = self._guarded(path)

    def _guarded(self, path: Path) -> Iterator[Row]:
        try:
            yield from self._read(path)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            self.problem = f"unreadable: {error}"

    def _read(self, path: Path) -> Iterator[Row]:
        suffixes = [suffix.lower() for suffix in path.suffixes]
        packed = suffixes[-1:] == [".gz"]
        kind = (suffixes[:-1] if packed else suffixes)[-1:] or [""]
        if kind[0] == ".parquet" and not packed:
            yield from self._parquet(path)
        elif kind[0] in _TEXT | _MORE_TEXT:
            with gzip.open(path, "rb") if packed else path.open("rb") as handle:
                yield from self._lines(handle)
        else:
            self.problem, self.nothing_read = "not searched: no text and no table", True

    def _lines(self, handle: _Lines) -> Iterator[Row]:
        total = 0
        while line := handle.readline(LONGEST_LINE):
            total += len(line)
            if total > MOST_BYTES:
                self.problem = f"only its first {MOST_BYTES >> 20} MiB were searched"
                return
            text = line.decode(errors="replace")
            first = text.partition("\t")[0] if "\t" in text else text.partition(",")[0]
            yield Row(text, _label(first))

    def _parquet(self, path: Path) -> Iterator[Row]:
        try:
            import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]
        except ImportError:
            self.problem = "not searched: Parquet needs the extra `parquet`"
            self.nothing_read = True
            return
        total = 0
        file: Any = parquet.ParquetFile(path)  # pyright: ignore[reportUnknownVariableType]
        for batch in file.iter_batches(batch_size=1024):
            for record in batch.to_pylist():
                cells = [str(value) for value in record.values() if value is not None]
                text = "\t".join(cells)[:LONGEST_LINE]
                total += len(text)
                if total > MOST_BYTES:
                    self.problem = f"only its first {MOST_BYTES >> 20} MiB were searched"
                    return
                yield Row(text, _label(cells[0] if cells else ""))


def rows_of(path: Path) -> Rows:
    """The rows of a lake file."""
    return Rows(path)


def _label(cell: str) -> str:
    words = cell.strip().strip('"').casefold().split()
    return " ".join(words) if len(words) > 1 and len(cell) <= 200 else ""
