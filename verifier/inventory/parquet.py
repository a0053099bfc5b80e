"""Parquet files by their footer: columns, types, rows. Needs the extra `parquet`.

Must not know other kinds of files.
"""

from pathlib import Path
from typing import Any

from verifier.inventory.model import Column, ColumnType
from verifier.inventory.tables import EXAMPLE_LENGTH, MOST_COLUMNS

_ROWS_FOR_EXAMPLE = 1 << 20
"""Bytes: a first row is read only where its row group is not larger."""


def read_parquet(path: Path) -> tuple[int, tuple[Column, ...], list[str]]:
    """Rows, columns and remarks. ImportError without pyarrow; any other exception is a broken file."""
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]

    # pyarrow has no type stubs.
    file: Any = parquet.ParquetFile(path)  # pyright: ignore[reportUnknownVariableType]
    metadata, schema = file.metadata, file.schema_arrow
    first: dict[str, Any] = {}
    if metadata.num_rows and metadata.row_group(0).total_byte_size <= _ROWS_FOR_EXAMPLE:
        first = next(file.iter_batches(batch_size=1)).to_pylist()[0]
    fields = [schema.field(index) for index in range(len(schema.names))]
    columns = tuple(
        Column(
            name=str(field.name),
            type=_type(str(field.type)),
            example="" if first.get(field.name) is None else str(first[field.name])[:EXAMPLE_LENGTH],
        )
        for field in fields[:MOST_COLUMNS]
    )
    remarks = ["Parquet"]
    if len(fields) > MOST_COLUMNS:
        remarks.append(f"{len(fields)} columns, of which the first {MOST_COLUMNS} are listed")
    return int(metadata.num_rows), columns, remarks


def _type(name: str) -> ColumnType:
    if name.startswith(("int", "uint")):
        return "integer"
    return "number" if name.startswith(("float", "double", "halffloat", "decimal")) else "text"
