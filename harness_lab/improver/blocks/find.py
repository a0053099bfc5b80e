"""Runs in the execution sandbox: find the rows of all tables that name what the question names."""

import csv
from pathlib import Path
from typing import Any


def read_rows(table: dict[str, Any]) -> list[dict[str, str]]:
    """All rows of one table; none if it cannot be read."""
    quoting = csv.QUOTE_NONE if table["delimiter"] == "\t" else csv.QUOTE_MINIMAL
    try:
        with Path(table["path"]).open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.DictReader(file, delimiter=table["delimiter"], quoting=quoting, restval="")
            return [{name: cell for name, cell in row.items() if isinstance(cell, str)} for row in reader]
    except (OSError, csv.Error):
        return []


def find_rows(tables: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Each row that has a cell equal to one of the names, with its table and the column of the match."""
    wanted = {name.casefold() for name in names}
    found: list[dict[str, Any]] = []
    for table in tables:
        for row in read_rows(table) if table["delimiter"] else []:
            column = next((name for name, cell in row.items() if cell.casefold() in wanted), None)
            if column is not None:
                found.append({"table": table["path"], "column": column, "row": row})
    return found


def show(rows: list[dict[str, str]], limit: int = 8) -> str:
    """One row a line, `column: value` pairs; a single cell stands alone under its column's name."""
    if len(rows) == 1 and len(rows[0]) == 1:
        [(name, cell)] = rows[0].items()
        return f"{name}\n{cell}"
    return "\n".join(", ".join(f"{name}: {cell}" for name, cell in row.items()) for row in rows[:limit])
