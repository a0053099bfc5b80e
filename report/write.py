"""From a storage folder to a finished report: reads catalog and store, prints the table, writes the page.

The one module of this room that opens storage. It only reads it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import orjson
from rich.console import Console

from catalog.database import Catalog
from catalog.errors import StoreError
from catalog.models import Stage
from catalog.store import Store
from report.assemble import RunRows, assemble
from report.data import STEPS, RunView
from report.step_rows import step_rows
from report.terminal import print_run

REPORT: Final = "report.html"
"""Name of the page in a run's folder."""


class UnknownRun(Exception):
    """No run of that id in the catalog; the text names the ones there are."""


def load_run(catalog: Catalog, store: Store, run_id: str) -> RunView:
    """The view of a recorded run. UnknownRun if there is none; a lost object only leaves its part out."""
    run = catalog.run(run_id)
    if run is None:
        known = ", ".join(item.run_id for item in catalog.runs()[-5:]) or "none yet"
        raise UnknownRun(f"no run {run_id!r} in the catalog; the latest are: {known}")

    def program(digest: str) -> str:
        try:
            return store.get_blob(digest).decode()
        except (StoreError, ValueError):
            return ""

    stages = catalog.stages(run_id)
    measurements = [_with_outcomes(store, row.model_dump()) for row in catalog.measurements(run_id)]
    decisions = [row.model_dump() for row in catalog.decisions(run_id)]
    return assemble(
        RunRows(
            run=run.model_dump(),
            measurements=measurements,
            decisions=decisions,
            stages=[row.model_dump() for row in stages],
            updates=list(_updates(store, stages)),
            program=program,
            steps=step_rows(decisions, measurements, stages, lambda digest: _record(store, digest), program),
        )
    )


def _with_outcomes(store: Store, row: dict[str, Any]) -> dict[str, Any]:
    detail = row["detail"]
    if "outcomes" not in detail and "evaluation" in detail:
        row["detail"] = {**detail, "outcomes": _record(store, detail["evaluation"]).get("outcomes", [])}
    return row


def _updates(store: Store, stages: list[Stage]) -> Iterator[dict[str, Any]]:
    """The updates that a training stage lists in its output record, numbered from 1 where it does not."""
    for stage in stages:
        body = _record(store, stage.output) if stage.output_kind == "record" and stage.name == "train" else {}
        for number, update in enumerate(cast("list[Mapping[str, Any]]", body.get("updates") or []), start=1):
            yield {"update": number, **update, "cycle": stage.cycle}


def _record(store: Store, digest: str) -> dict[str, Any]:
    try:
        return dict(orjson.loads(store.get_blob(digest))["body"])
    except (StoreError, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return {}


def write_run_report(root: Path, run_id: str, console: Console | None = None) -> Path:
    """Write `root/run_id/report.html` and a page for each step beside it; returns the report's path.

    The table is printed to `console` if one is given.
    """
    # matplotlib takes a second to load, which readers of the table alone need not wait for.
    from report.html import write, write_steps

    view = load_run(Catalog(root / "catalog.db"), Store(root / "store"), run_id)
    write_steps(view, root / run_id / STEPS)
    path = write(view, root / run_id / REPORT)
    if console is not None:
        print_run(view, console)
    return path
