"""The life of a job's own process: it ends on SIGTERM or with its parent, cleanly. Needs no torch.

Must not know what the job does.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from broker.errors import OURS
from rl.errors import TrainingError
from verifier.release import ReleaseError

PARENT_VARIABLE: Final = "RINR_PARENT"
"""Process id of the parent that the job must not outlive."""
STOPPED: Final = 130
_SET_PARENT_DEATH_SIGNAL: Final = 1
EXPECTED: Final = (TrainingError, *OURS, ReleaseError, OSError)
"""What a job may end with: one line in its log, the last one."""


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent ends (Linux); leave at once if it already has."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(STOPPED)


def end_group(seconds: float) -> None:
    """End every other process of this one's own group: by SIGTERM, by force after `seconds`.

    A job leads its group (`rl.launch`); started otherwise, it has no group of its own and nothing is done.
    """
    if os.getpgrp() != os.getpid():
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + seconds
        for pid in _group():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while _group() and time.monotonic() < deadline:
            time.sleep(0.05)


def _group() -> list[int]:
    """Other running processes of this one's group (Linux)."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(group) == os.getpid() and state != "Z" and int(stat.parent.name) != os.getpid():
            found.append(int(stat.parent.name))
    return found


def run_main(work: Coroutine[Any, Any, None]) -> int:
    """Run to the end, or cancel on SIGTERM and SIGINT so that every sandbox is closed; the exit status."""
    end_with_parent()
    try:
        asyncio.run(_until_signal(work))
    except asyncio.CancelledError:
        print("stopped by a signal", file=sys.stderr)
        return STOPPED
    except EXPECTED as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await task
