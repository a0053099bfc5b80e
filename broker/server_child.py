"""A serving child's duties to its parent (`server_process`): say when it serves, and never outlive it.

`python -m broker.server_child PARENT GRACE COMMAND...` does the second for a command that knows nothing of
it, and for every process that the command starts.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from broker.process_group import descendants

_WATCH_SECONDS: Final = 0.5
_SET_CHILD_SUBREAPER: Final = 36


def end_with_parent(parent: int | None) -> None:
    """Watch the parent, so that no server is left behind when it is killed.

    The kernel's own signal for this is sent when the parent's starting *thread* ends, which is too early.
    """
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def write_ready(path: Path, port: int) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps({"port": port, "pid": os.getpid()}), encoding="utf-8")
    partial.replace(path)


def attend(parent: int, grace: float, command: Sequence[str]) -> int:
    """Run a command as long as the parent lives; SIGTERM goes on to it. Returns its exit status.

    `grace`: seconds from SIGTERM until it is killed.
    When this returns nothing is left that the command started, workers that lost their own parent included.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    told = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        told.set()

    signal.signal(signal.SIGTERM, note)
    child = subprocess.Popen(command)
    try:
        while os.getppid() == parent and not told.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(_WATCH_SECONDS / 5)
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(grace)
        child.kill()
        return child.wait()
    finally:
        _end_descendants()


def _end_descendants() -> None:
    while left := descendants(os.getpid()):
        for one in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        # Orphans are this process's to collect.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(attend(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
