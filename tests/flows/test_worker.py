"""A run that hands over and waits, and a worker in another process that trains, validates and publishes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from catalog.database import Catalog
from tests.fixtures.sandboxes import QUICK

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spec("HAND-01", "HAND-02", "HAND-03")
def test_a_worker_serves_the_request_of_a_waiting_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows"]
    settings = ["recipe=ci", "run_id=waits", "schedule.cycles=1", "trainer.claim=worker", QUICK]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    run = subprocess.Popen(
        [*command, "run", *settings, f"storage.root={tmp_path}"],
        cwd=ROOT,
        env=environment,
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
            break
    else:
        pytest.fail("the run ended without waiting: " + "".join(said)[-2000:])
    served = subprocess.run(
        [*command, "worker", "--once", "--root", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert served.returncode == 0, served.stderr[-2000:]
    assert "served 1 request" in served.stdout
    rest, _ = run.communicate(timeout=120)
    assert run.returncode == 0, rest[-2000:]
    measured = [row.kind for row in Catalog(tmp_path / "catalog.db").measurements("waits")]
    assert measured[-1] == "export_test"
