"""Runs a task's test script inside the check sandbox. Its text is sent there, so: standard library only.

Everything that the script started is dead before its reward files are read. They are read as data and judged
by the host. Must not know references or tasks.
"""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

_PRIVATE = Path("/assets")
_TESTS = Path("/tmp/tests")
_LOGS = Path("/tmp/logs")
_MOST = 4_096
"""Bytes of a reward file; a larger one is no reward. All that is printed must fit into one observation."""
_TAIL = 2_000


def run_script(settings: dict[str, Any]) -> None:
    """Print one JSON line: `timed_out`, `status`, `json` and `text` (the reward files), `log` (a tail)."""
    _lay_out(settings["tests"])
    environment = {**os.environ, "PYTHONPATH": "/opt/packages", **settings["environment"]}
    log = _LOGS / "verifier/test-stdout.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(_TESTS / "test.sh")],
            cwd="/work",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _limit(settings["memory_bytes"]),
        )
        timed_out = False
        try:
            process.wait(settings["seconds"])
        except subprocess.TimeoutExpired:
            timed_out = True
    status = process.poll()
    _end_everything()
    found = {
        "timed_out": timed_out,
        "status": status,
        "json": _read(_LOGS / "verifier/reward.json"),
        "text": _read(_LOGS / "verifier/reward.txt"),
        "log": log.read_bytes()[-_TAIL:].decode("utf-8", "replace"),
    }
    print(json.dumps(found))


def _lay_out(folders: list[str]) -> None:
    """/tests from the private files, /logs empty."""
    for place in (_TESTS, _LOGS):
        shutil.rmtree(place, ignore_errors=True)
    for name in ("verifier", "artifacts", "agent"):
        (_LOGS / name).mkdir(parents=True)
    _TESTS.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        if (_PRIVATE / folder).is_dir():
            shutil.copytree(_PRIVATE / folder, _TESTS, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path in _TESTS.rglob("*"):
        path.chmod(0o755)


def _limit(memory_bytes: int | None) -> None:
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _end_everything() -> None:
    """Kill and collect every process but this one and process 1, whatever session it fled to."""
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.002)


def _read(path: Path) -> str | None:
    """A reward file's text; None if it is not there. What is no small plain file reads as an empty one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        data = os.read(descriptor, _MOST + 1)
    finally:
        os.close(descriptor)
    return data.decode("utf-8", "replace") if len(data) <= _MOST else ""
