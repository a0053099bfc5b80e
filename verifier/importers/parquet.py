"""Rows of Parquet files with their places, read in batches with pyarrow. Knows no benchmark.

pyarrow is an optional dependency: without it, one line says what to install.
"""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

from verifier.importers.base import unknown_fields
from verifier.layout import ReleaseError

_BATCH: Final = 1024
"""Rows in memory at a time."""


def parquet_rows(
    path: Path, name: str, known: Sequence[str], needed: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of a Parquet file with its place, `name` standing for the file in places; row 1 is the first.

    Raises ReleaseError for a file that is no Parquet, a column that is not known, or one that is missing.
    """
    pyarrow: Any = _module("pyarrow", name)
    parquet: Any = _module("pyarrow.parquet", name)
    try:
        with parquet.ParquetFile(path) as file:
            columns = cast("list[str]", file.schema_arrow.names)
            unknown_fields(columns, known, name)
            missing = sorted(set(needed) - set(columns))
            if missing:
                raise ReleaseError(f"{name}: no column {missing[0]!r}; it should have {', '.join(needed)}")
            if file.metadata.num_rows == 0:
                raise ReleaseError(f"{name}: the file has no rows")
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in cast("list[dict[str, Any]]", batch.to_pylist()):
                    number += 1
                    yield f"{name} row {number}", row
    except OSError as error:
        raise ReleaseError(f"{name}: {error.strerror or 'it cannot be read as Parquet'}") from None
    except pyarrow.ArrowException as error:
        raise ReleaseError(f"{name}: no Parquet file ({str(error).splitlines()[0]})") from None


def _module(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ReleaseError(f"{name}: Parquet needs pyarrow; pip install 'rinr[parquet]'") from None
