"""Describes every file of a lake: tables with their columns, anything else in one line; no file is fatal.

Works for any folder. Must not know any one release, and reads only public files.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from verifier.inventory.content import Content, read_content
from verifier.inventory.model import LAKE_MOUNT, Inventory, Table
from verifier.inventory.parquet import read_parquet
from verifier.inventory.pickles import describe_pickle
from verifier.inventory.tables import SUFFIXES, NotATable, read_table
from verifier.inventory.texts import KNOWN, describe_binary, describe_text

MOST_FILES: Final = 2_000
"""Files that are described: the inventory goes into every task."""

_PICKLES: Final = frozenset({".pkl", ".pickle"})


def read_inventory(
    lake: Path | None, *, descriptions: Mapping[str, str] | None = None, libraries: Sequence[str] = ()
) -> Inventory:
    """Describe every file under `lake`, sorted by path. `descriptions` is by path inside the lake."""
    said = descriptions or {}
    tables: list[Table] = []
    files = _files(lake) if lake is not None else []
    for path, name in files[:MOST_FILES]:
        tables.append(describe_file(path, f"{LAKE_MOUNT}/{name}", said.get(name, "")))
    if len(files) > MOST_FILES:
        more = f"{len(files) - MOST_FILES} more files"
        tables.append(Table(path=LAKE_MOUNT, rows=0, delimiter="", columns=(), description=more))
    return Inventory(tables=tuple(tables), libraries=tuple(libraries))


def describe_file(path: Path, seen_as: str, description: str = "") -> Table:
    """One file, whatever it is."""
    try:
        return _described(path, seen_as, description)
    except OSError as error:
        return _odd(seen_as, description, f"unreadable: {error.strerror or error}")


def _files(lake: Path) -> list[tuple[Path, str]]:
    """Everything that is no plain folder, with its name inside the lake in readable characters."""
    found: list[tuple[Path, str]] = []
    for folder, folders, names in os.walk(lake):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*names, *links):
            path = Path(folder) / name
            inside = path.relative_to(lake).as_posix()
            found.append((path, inside.encode(errors="surrogateescape").decode(errors="replace")))
    return sorted(found, key=lambda item: item[0])


def _described(path: Path, seen_as: str, description: str) -> Table:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return _odd(seen_as, description, "a symbolic link, which is not followed")
    if not stat.S_ISREG(mode):
        return _odd(seen_as, description, "not an ordinary file")
    if path.lstat().st_size == 0:
        return _odd(seen_as, description, "empty file")
    if path.name.startswith("._"):
        return _odd(seen_as, description, "a resource fork of another system, of no use")
    content = read_content(path)
    if content.suffix == ".parquet" and not content.packed:
        return _parquet(content, seen_as, description)
    if content.suffix in _PICKLES:
        told = describe_pickle(content.head, content.complete)
        return _odd(seen_as, description, told, *_remarks(content))
    if content.suffix in SUFFIXES or (content.suffix not in KNOWN and _is_table(content)):
        return _table(content, seen_as, description)
    return _odd(seen_as, description, *_remarks(content), describe_text(content))


def _table(content: Content, seen_as: str, description: str) -> Table:
    try:
        rows, delimiter, columns, remarks = read_table(content)
    except NotATable as error:
        return _odd(seen_as, description, str(error), *_remarks(content))
    remarks = [*remarks, *_remarks(content)]
    if content.packed:
        # Plain readers of tables would stumble over it.
        remarks.append(f"parted by {delimiter!r}")
        delimiter = ""
    return Table(
        path=seen_as,
        rows=rows,
        delimiter=delimiter,
        columns=columns,
        description=_with(description, "; ".join(remarks)),
    )


def _parquet(content: Content, seen_as: str, description: str) -> Table:
    try:
        rows, columns, remarks = read_parquet(content.path)
    except ImportError:
        return _odd(seen_as, description, f"Parquet, {content.size} bytes")
    except Exception as error:  # pyarrow raises many kinds for a broken file, and none may be fatal
        reason = " ".join(str(error).split())[:120]
        return _odd(seen_as, description, f"broken Parquet file: {reason}", describe_binary(content))
    return Table(
        path=seen_as,
        rows=rows,
        delimiter="",
        columns=columns,
        description=_with(description, "; ".join(remarks)),
    )


def _is_table(content: Content) -> bool:
    """Whether the first lines of a text all have the same number of tabs, one at least."""
    lines = content.head[:65536].decode(errors="replace").split("\n")
    cut = lines if content.complete and len(content.head) <= 65536 else lines[:-1]
    counts = {line.count("\t") for line in cut[:20] if line}
    return content.is_text and len(counts) == 1 and counts != {0} and len([line for line in cut if line]) > 1


def _remarks(content: Content) -> list[str]:
    return [*(["gzipped"] if content.packed else []), *([content.damage] if content.damage else [])]


def _odd(seen_as: str, description: str, *what: str) -> Table:
    note = "; ".join(what)
    return Table(path=seen_as, rows=0, delimiter="", columns=(), description=_with(description, note))


def _with(description: str, note: str) -> str:
    if not note:
        return description
    return f"{description} ({note})" if description else note
