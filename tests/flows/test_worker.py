"""A run that hands over and waits, and a worker in another process that trains, validates and publishes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from catalog.database import Catalog
from tests.fixtures.sandboxes import QUICK

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "flows"]
SETTINGS = ["recipe=ci", "run_id=waits", "schedule.cycles=1", "trainer.claim=worker", QUICK]
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1"}


def waiting_run(root: Path) -> subprocess.Popen[str]:
    """A run that has published its request."""
    run = subprocess.Popen(
        [*COMMAND, "run", *SETTINGS, f"storage.root={root}"],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.stdout is not None
    said: list[str] = []
    for line in run.stdout:
        said.append(line)
        if "waits for a worker" in line:
            return run
    pytest.fail("the run ended without waiting: " + "".join(said)[-2000:])


def finished(*arguments: str) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def last_measured(root: Path) -> str:
    return Catalog(root / "catalog.db").measurements("waits")[-1].kind


@pytest.mark.spec("HAND-01", "HAND-02", "HAND-03")
def test_a_worker_serves_the_request_of_a_waiting_run(tmp_path: Path) -> None:
    run = waiting_run(tmp_path)
    assert "served 1 request" in finished("worker", "--once", "--root", str(tmp_path))
    rest, _ = run.communicate(timeout=120)
    assert run.returncode == 0, rest[-2000:]
    assert last_measured(tmp_path) == "export_test"


@pytest.mark.spec("HAND-02", "HAND-03")
def test_run_and_worker_may_take_turns_where_they_cannot_share_a_host(tmp_path: Path) -> None:
    run = waiting_run(tmp_path)
    run.send_signal(signal.SIGINT)
    rest, _ = run.communicate(timeout=60)
    assert run.returncode == 130, rest[-2000:]
    assert "served 1 request" in finished("worker", "--once", "--root", str(tmp_path))
    finished("run", *SETTINGS, f"storage.root={tmp_path}")
    assert last_measured(tmp_path) == "export_test"
    stages = [row.name for row in Catalog(tmp_path / "catalog.db").stages("waits")]
    assert stages.count("train") == stages.count("validate") == 1
