"""GPU memory as the driver counts it: who holds how much, and the proof that it is free again (HAND-04).

Asks `nvidia-smi`, so that this process opens no device itself. A machine where it does not answer has no GPU
to prove anything of. Must not know who took the memory, or why.
"""

import csv
import io
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import ModelUnavailable

_QUERY_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.5
FREE_SECONDS: Final = 60.0
"""How long a driver may take to give a dead process's memory back."""
TOLERANCE_MIB: Final = 256
"""What "back to the level before" may be off by: drivers and monitors come and go with a few MiB."""


@dataclass(frozen=True)
class Device:
    """One GPU at one moment; memory in MiB."""

    index: int
    uuid: str
    name: str
    used: int
    total: int


@dataclass(frozen=True)
class Holder:
    """A process with memory on a device, as the driver names it: in a container perhaps by another id."""

    pid: int
    uuid: str
    name: str
    mib: int | None
    """None where the driver does not say, as in some containers."""

    def __str__(self) -> str:
        amount = "an unknown amount" if self.mib is None else f"{self.mib:,} MiB"
        return f"process {self.pid} ({self.name}) with {amount}"


def devices() -> tuple[Device, ...]:
    """Every GPU whose memory the driver tells; empty where there is none."""
    found: list[Device] = []
    for row in _query("--query-gpu=index,uuid,name,memory.used,memory.total"):
        if len(row) == 5 and row[0].isdigit() and row[3].isdigit() and row[4].isdigit():
            found.append(Device(int(row[0]), row[1], row[2], int(row[3]), int(row[4])))
    return tuple(found)


def holders(of: Iterable[Device]) -> tuple[Holder, ...]:
    """Processes with memory on these devices."""
    wanted = {device.uuid for device in of}
    return tuple(
        Holder(int(row[1]), row[0], row[2], int(row[3]) if row[3].isdigit() else None)
        for row in _query("--query-compute-apps=gpu_uuid,pid,process_name,used_memory")
        if len(row) == 4 and row[0] in wanted and row[1].isdigit()
    )


def chosen(names: Sequence[str] = ()) -> tuple[Device, ...]:
    """The devices of these names (index or UUID); without names those that CUDA_VISIBLE_DEVICES leaves.

    A name that is none of a whole device, as of a slice of one, stands for all devices.
    """
    found = devices()
    if not names:
        names = [
            part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()
        ]
    if not names:
        return found
    picked = tuple(device for device in found if {str(device.index), device.uuid} & set(names))
    return picked if len(picked) == len(set(names)) else found


class MemoryWatch:
    """The level of some devices before something takes memory there, and whether it is back.

    >>> watch = MemoryWatch(("0",))          # before the start
    >>> watch.prove_free("the server")       # after the end
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.before = chosen(names)

    def now(self) -> tuple[Device, ...]:
        """The same devices as they are now."""
        known = {device.uuid for device in self.before}
        return tuple(device for device in devices() if device.uuid in known) if known else ()

    def prove_free(self, what: str, seconds: float = FREE_SECONDS) -> tuple[Device, ...]:
        """Return once each device holds no more than before; the devices as they are then.

        Raises `ModelUnavailable` after `seconds`, naming the processes that hold the memory.
        """
        level = {device.uuid: device.used + TOLERANCE_MIB for device in self.before}
        deadline = time.monotonic() + seconds
        while True:
            now = self.now()
            over = [device for device in now if device.used > level[device.uuid]]
            if not over and len(now) == len(self.before):
                return now
            if time.monotonic() > deadline:
                raise ModelUnavailable(self._held(what, over, seconds))
            time.sleep(_POLL_SECONDS)

    def _held(self, what: str, over: Sequence[Device], seconds: float) -> str:
        if not over:
            return f"{what} has ended, but nvidia-smi no longer tells the memory of its devices"
        before = {device.uuid: device.used for device in self.before}
        levels = ", ".join(
            f"GPU {device.index} {device.used:,} MiB, {before[device.uuid]:,} before the start"
            for device in over
        )
        known = "; ".join(str(holder) for holder in holders(over)) or "the driver names no process"
        return (
            f"{what} has ended, but its GPU memory was not free within {seconds:.0f} s: {levels}; held by "
            f"{known}: end what holds it, or give the run devices of its own"
        )


def plain(of: Iterable[Device]) -> list[dict[str, Any]]:
    """Devices for a log: index, used and total memory in MiB."""
    return [{"gpu": device.index, "used_mib": device.used, "total_mib": device.total} for device in of]


def _query(what: str) -> list[list[str]]:
    try:
        done = subprocess.run(
            ["nvidia-smi", what, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_QUERY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(done.stdout)) if row]
