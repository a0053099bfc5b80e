"""A serving child's duties to its parent (`server_process`): say when it serves, and never outlive it.

`python -m broker.server_child PARENT COMMAND...` does the second for a command that knows nothing of it.
"""

import contextlib
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

_WATCH_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 5.0


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


def attend(parent: int, command: Sequence[str]) -> int:
    """Run a command as long as the parent lives; SIGTERM goes on to it. Returns its exit status."""
    child = subprocess.Popen(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.terminate()

    signal.signal(signal.SIGTERM, pass_on)
    while os.getppid() == parent:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_WATCH_SECONDS)
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(_STOP_SECONDS)
    child.kill()
    return child.wait()


if __name__ == "__main__":
    sys.exit(attend(int(sys.argv[1]), sys.argv[2:]))
