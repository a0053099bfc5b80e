"""The processes of one group: who is left, and their end. Linux only. Must not know what they compute."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.errors import ModelUnavailable

_POLL_SECONDS: Final = 0.05
_END_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Process:
    """A living process; one that has ended and only waits to be collected holds nothing and is none."""

    pid: int
    parent: int
    group: int
    name: str


def processes() -> Iterator[Process]:
    """Every living process that this one can see."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue
        head, _, rest = text.rpartition(")")
        state, parent, group = rest.split()[:3]
        if state not in ("Z", "X"):
            yield Process(int(folder.name), int(parent), int(group), head.partition("(")[2])


def descendants(pid: int) -> list[Process]:
    """Living children of a process, theirs, and so on."""
    found, known = list(processes()), {pid}
    below: list[Process] = []
    while new := [one for one in found if one.parent in known and one.pid not in known]:
        below += new
        known |= {one.pid for one in new}
    return below


def end_group(group: int, what: str, seconds: float = _END_SECONDS) -> None:
    """Kill every process of a group and return when none is left.

    Raises `ModelUnavailable` naming those that do not end, e.g. one that waits for a device in the kernel.
    """
    deadline = time.monotonic() + seconds
    while left := [one for one in processes() if one.group == group]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        if time.monotonic() > deadline:
            names = ", ".join(f"{one.pid} ({one.name})" for one in left)
            raise ModelUnavailable(f"{what} left processes that do not end: {names}; end them by hand")
        time.sleep(_POLL_SECONDS)
