"""A run on the embedded engine, as on a laptop: lost and replaced, released, the export served next."""

import json
import os
import signal
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.process_group import processes
from catalog.database import Catalog
from tests.flows.test_vllm_run import Run
from tests.rl import rl_jobs

SIZES = ("mode=model", "schedule.cycles=1", "schedule.pass_attempts=2", "rl.attempts=8")
PATIENCE = "model.endpoint.attempts=1"


@pytest.mark.slow
@pytest.mark.spec("HOST-10", "HAND-04", "HOST-07")
def test_the_engine_is_replaced_once_gone_before_training_and_serves_the_export_next(tmp_path: Path) -> None:
    program = tmp_path / "guess.py"
    program.write_text(rl_jobs.guess())
    model = ("model=smollm2", f"model.name={rl_jobs.base_model()}", "model.device=cpu", "model.threads=1")
    run = Run(tmp_path / "runs", f"harness={program}", *SIZES, *model, PATIENCE, inference="embedded")
    # In the first stage, whose episodes take a few tenths of a second.
    run.strike(1, lambda pid: os.kill(pid, signal.SIGKILL), seconds=0.0)
    code, errors = run.end()
    assert code == 0, errors[-3000:]
    assert [event["why"] for event in run.events("lost")] == ["is dead"]
    first, second, last = run.events("started")
    assert {event["kind"] for event in (first, second, last)} == {"embedded"}
    assert first["model"] == second["model"] != last["model"], "the base again, then its export"

    released = [datetime.fromisoformat(event["time"]).timestamp() for event in run.events("released")]
    assert len(released) == 3
    trained = run.root / "v/r0001/train/progress.jsonl"
    assert json.loads(trained.read_text().splitlines()[0])["event"] == "started"
    with sqlite3.connect(run.root / "catalog.db") as catalog:
        [published] = catalog.execute("select min(created) from handoffrequest").fetchone()
    asked = datetime.fromisoformat(published).replace(tzinfo=UTC).timestamp()
    assert released[1] < asked < released[2]
    assert datetime.fromisoformat(last["time"]).timestamp() > trained.stat().st_mtime

    catalog_rows = {row.kind: row for row in Catalog(run.root / "catalog.db").measurements("v")}
    assert catalog_rows["pass_before"].detail["server_losses"] == 1
    models = {kind: row.model for kind, row in catalog_rows.items()}
    assert (
        models["pass_before"] == models["rl_baseline_test"] != models["export_test"] == models["pass_after"]
    )
    pids = {event["pid"] for event in run.events("started")}
    assert not [one for one in processes() if one.group in pids or one.pid in pids]
