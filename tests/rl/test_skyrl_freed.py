"""The GPU memory of Ray's workers after SkyRL: waited for, and told where it stays."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from broker.gpu_memory import MemoryWatch
from rl.skyrl.freed import still_held

FAKE_GPU = Path(__file__).parents[1] / "fixtures/fake_gpu"
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryWatch:
    monkeypatch.setenv("FAKE_GPU", str(tmp_path))
    monkeypatch.setenv("PATH", f"{FAKE_GPU}{os.pathsep}{os.environ['PATH']}")
    return MemoryWatch()


def test_a_worker_that_dies_late_is_waited_for(watch: MemoryWatch, tmp_path: Path) -> None:
    worker = subprocess.Popen(SLEEPER)
    (tmp_path / str(worker.pid)).write_text("60000")
    assert watch.now()[0].used > 60_000
    timer = threading.Timer(1.0, worker.kill)
    timer.start()
    reaper = threading.Thread(target=worker.wait)
    reaper.start()
    assert still_held(watch, seconds=30) is None
    assert worker.poll() is not None, "it was waited for"
    reaper.join()


def test_a_neighbours_memory_is_told_and_loses_nothing(watch: MemoryWatch, tmp_path: Path) -> None:
    neighbour = subprocess.Popen(SLEEPER)
    (tmp_path / str(neighbour.pid)).write_text("3000")
    try:
        said = still_held(watch, seconds=0.1)
    finally:
        neighbour.kill()
        neighbour.wait()
    assert said is not None
    assert f"process {neighbour.pid} (python) with 3,000 MiB" in said


def test_without_a_gpu_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert still_held(MemoryWatch()) is None
