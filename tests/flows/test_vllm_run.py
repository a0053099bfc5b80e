"""Runs that start vLLM themselves, with the stand-in: lost servers, and release before training (HOST-10)."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker.process_group import processes
from catalog.database import Catalog
from tests.fixtures.command_line import EXAMPLE, ROOT
from tests.fixtures.sandboxes import QUICK

pytestmark = pytest.mark.slow
FAKE = "[python,-m,tests.fixtures.vllm_server]"


class Run:
    """One `rinr run` with servers of its own, by default the stand-in for vLLM, struck while it goes on."""

    def __init__(self, root: Path, *settings: str, inference: str = "vllm") -> None:
        self.root = root
        self.process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "flows",
                    "run",
                    "recipe=ci",
                    "run_id=v",
                    f"storage.root={root}",
                    QUICK,
                ),
                *(
                    f"model.inference={inference}",
                    f"model.vllm.command={FAKE}",
                    "schedule.cycles=1",
                    *settings,
                ),
            ],
            cwd=ROOT,
            env={**os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        path = self.root / "v" / "inference" / "services.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if kind in ("", event["event"])]

    def strike(self, number: int, blow: Callable[[int], None], after: str = "", seconds: float = 0.3) -> None:
        """Hit the server that is started as number `number`, once episodes are under way.

        `after`: not before a stage of this name has ended. `seconds`: then so much later.
        """

        def wait_and_hit() -> None:
            while len(started := self.events("started")) < number and self.process.poll() is None:
                time.sleep(0.02)
            while after and self.process.poll() is None:
                if after in {stage.name for stage in Catalog(self.root / "catalog.db").stages("v")}:
                    break
                time.sleep(0.02)
            if self.process.poll() is None:
                time.sleep(seconds)
                blow(started[number - 1]["pid"])

        threading.Thread(target=wait_and_hit, daemon=True).start()

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=500)
        return self.process.returncode, errors


def kill_server(group: int) -> None:
    os.kill(next(one.pid for one in processes() if one.parent == group), signal.SIGKILL)


def stop_server(group: int) -> None:
    os.kill(next(one.pid for one in processes() if one.parent == group), signal.SIGSTOP)


def nothing_left(run: Run) -> None:
    groups = {event["pid"] for event in run.events("started")}
    assert groups
    assert not [one for one in processes() if one.group in groups]


HARNESS_ONLY = ("mode=harness", "model.vllm.arguments=[--latency,'0.2']", "model.endpoint.attempts=1")


@pytest.mark.spec("HOST-10", "HOST-07", "SEL-04")
def test_a_server_killed_in_a_stage_is_replaced_once_and_counted_in_the_record(tmp_path: Path) -> None:
    run = Run(tmp_path, *HARNESS_ONLY)
    run.strike(1, kill_server, after="designate")
    code, errors = run.end()
    assert code == 0, errors[-3000:]
    assert [event["why"] for event in run.events("lost")] == ["is dead"]
    assert len(run.events("started")) == 2
    assert "the inference server is dead: it is started again, once a stage" in errors
    rows = Catalog(tmp_path / "catalog.db").measurements("v")
    assert all(row.total == 4 or row.split != "test" for row in rows), "complete all the same"
    losses = {row.kind: row.detail["server_losses"] for row in rows if "server_losses" in row.detail}
    assert losses == {"phase_baseline_test": 1}
    page = (tmp_path / "v" / "report.html").read_text()
    assert page.count("taken again after the inference server was lost") == 1
    nothing_left(run)


@pytest.mark.spec("HOST-10")
def test_a_server_that_hangs_is_replaced_and_the_second_one_killed_ends_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, *HARNESS_ONLY, "model.endpoint.timeout_seconds=2")
    run.strike(1, stop_server)
    run.strike(2, kill_server)
    code, errors = run.end()
    assert code == 5, errors[-3000:]
    assert [event["why"] for event in run.events("lost")] == ["hangs", "is dead"]
    assert len(run.events("started")) == 2, "no third server"
    last = errors.strip().splitlines()[-1]
    assert last.startswith("rinr: model.inference=vllm: the server was lost 2 times in one stage")
    nothing_left(run)


@pytest.mark.spec("HAND-04", "HOST-10")
def test_the_server_and_its_memory_are_gone_before_training_and_the_export_is_served_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = tmp_path / "gpu"
    gpu.mkdir()
    monkeypatch.setenv("PATH", f"{ROOT / 'tests/fixtures/fake_gpu'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GPU", str(gpu))
    program = tmp_path / "example.py"
    program.write_text(EXAMPLE)
    sizes = ("mode=model", f"harness={program}", "rl.attempts=8", "schedule.pass_attempts=2")
    run = Run(tmp_path / "runs", *sizes, "model.vllm.devices=[0]")
    code, errors = run.end()
    assert code == 0, errors[-3000:]
    events = run.events()
    assert [event["event"] for event in events] == ["started", "released"] * 2
    assert len({event["model"] for event in run.events("started")}) == 2, "M0, then its export"
    for released in run.events("released"):
        assert released["before"] == released["after"]
    trained = (tmp_path / "runs/v/r0001/train/progress.jsonl").stat().st_ctime
    ended = next(event["time"] for event in run.events("released"))
    assert trained > _seconds(ended)
    with sqlite3.connect(tmp_path / "runs/catalog.db") as catalog:
        [published] = catalog.execute("select min(created) from handoffrequest").fetchone()
    assert datetime.fromisoformat(published).replace(tzinfo=UTC).timestamp() > _seconds(ended)
    rows = {row.kind: row.model for row in Catalog(tmp_path / "runs/catalog.db").measurements("v")}
    assert rows["pass_before"] == rows["rl_baseline_test"] != rows["export_test"] == rows["pass_after"]
    nothing_left(run)


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def test_a_missing_vllm_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    run = Run(tmp_path, "model.vllm.command=[/nowhere/vllm,serve]")
    code, errors = run.end()
    assert code == 5
    assert errors.strip().startswith("rinr: model.inference=vllm needs vLLM: pip install")
    assert errors.strip().count("\n") == 0
    assert not (tmp_path / "catalog.db").exists()
