"""Runs in the execution sandbox after `find`, where no cell equals a name: cells that contain one."""

import re
from typing import Any

from harness_lab.improver.blocks.find import read_rows


def find_near(tables: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Each row that has a cell with one of the names as whole words, with its table and that column."""
    wanted = [re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE) for name in names if name]
    found: list[dict[str, Any]] = []
    for table in tables:
        for row in read_rows(table) if table["delimiter"] else []:
            column = next(
                (name for name, cell in row.items() if any(pattern.search(cell) for pattern in wanted)), None
            )
            if column is not None:
                found.append({"table": table["path"], "column": column, "row": row})
    return found
