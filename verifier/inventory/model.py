"""What a program may be told about its resources: files of the lake, columns, libraries. Public.

Owns the shapes only; they enter every task that a sandbox gets, so an empty new field is not written. Must
not know how a file is read.
"""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

ColumnType = Literal["text", "integer", "number"]

INVENTORY_FILE: Final = "public/inventory.json"
"""Where a release keeps the inventory of its lake, so that it is not read anew at every start."""

LAKE_MOUNT: Final = "/lake"
"""Where the sandbox sees the lake, read-only."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(_Frozen):
    name: str
    type: ColumnType
    """The narrowest type that every non-empty cell of the column has, as far as the file was read."""
    example: str
    """The column's cell in the first row, shortened; empty for a table without rows."""


class Table(_Frozen):
    """One file of the lake; a table if it has columns."""

    path: str
    """As a program sees it, for example `/lake/genes.tsv`."""
    rows: int
    """Data rows, the header not counted; the description says so where it is an estimate."""
    delimiter: str
    """What parts the cells of a plain text table; empty for every other file, also a compressed one."""
    columns: tuple[Column, ...]
    """At most MOST_COLUMNS of them; the description says where there are more."""
    description: str = ""
    """What the release says of the file, and in brackets what is odd about it or what kind of file it is."""


class Inventory(_Frozen):
    """The files of a lake and what there is to read them with."""

    tables: tuple[Table, ...]
    libraries: tuple[str, ...] = ()
    """Python packages of the execution environment, as `name version`."""
