"""One trainer a job folder, held by a lock that the kernel takes back when its holder dies.

The file names the holder for a person; what decides is the lock. So the file that a killed trainer leaves is
stale by itself, and the next trainer takes the folder over. Must not know what a job does.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from rl.errors import TrainingError

LOCK: Final = "lock"


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Hold the folder. Raises `TrainingError` naming the process that is at work in it."""
    with (folder / LOCK).open("a+") as handle:
        if not _lock(handle):
            raise TrainingError(_busy(folder, handle))
        handle.seek(0)
        handle.truncate()
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def require_free(folder: Path, seconds: float) -> None:
    """Return when nobody holds the folder. Raises `TrainingError` if somebody still does after `seconds`."""
    with contextlib.suppress(FileNotFoundError), (folder / LOCK).open("r+") as handle:
        until = time.monotonic() + seconds
        while not _lock(handle):
            if time.monotonic() > until:
                raise TrainingError(_busy(folder, handle))
            time.sleep(0.1)


def _lock(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(folder: Path, handle: IO[str]) -> str:
    handle.seek(0)
    holder = handle.read().strip() or "unknown"
    return f"process {holder} is at work in {folder}: wait for it, or end it and start again"
