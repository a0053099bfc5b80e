"""What a sandbox is to the rest of the broker: two roles, limits, a channel of frames.

Must not know which back end is behind it.
"""

import asyncio
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field

from catalog.digest import digest_bytes, digest_json

MEBIBYTE = 1 << 20


class Role(StrEnum):
    """What runs inside. Only execution ever sees the data lake and a task's assets (HOST-02)."""

    CONTROLLER = "controller"
    """The harness program."""
    EXECUTION = "execution"
    """The tool code that the program sends."""


USERS: Mapping[Role, int] = {Role.CONTROLLER: 65533, Role.EXECUTION: 65534}
"""User and group id of all that runs in a sandbox; on the host too, where the back end may choose it."""


class Limits(BaseModel):
    """Hard limits of one sandbox; they protect the host, so they are no budget of an episode."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_bytes: int = Field(ge=64 * MEBIBYTE)
    """Address space of each process, and the sum over all of them where a memory group exists."""
    processes: int = Field(ge=4)
    file_bytes: int = Field(ge=MEBIBYTE)
    """Size of /work, of /tmp, and of any single file."""
    open_files: int = Field(default=256, ge=64)
    cpus: float = Field(default=1.0, gt=0)
    """Processors' worth of time for the whole sandbox, where the back end can limit it."""
    cpu_seconds: int | None = None
    """CPU time of each worker process; None is unlimited."""
    wall_seconds: float = Field(gt=0)
    """The sandbox ends itself after this long, whatever its host does."""


DEFAULT_LIMITS: Mapping[Role, Limits] = {
    Role.CONTROLLER: Limits(
        memory_bytes=512 * MEBIBYTE, processes=16, file_bytes=16 * MEBIBYTE, wall_seconds=7_200
    ),
    Role.EXECUTION: Limits(
        memory_bytes=2_048 * MEBIBYTE, processes=64, file_bytes=256 * MEBIBYTE, wall_seconds=7_200
    ),
}


def identity_of(kind: str, runtime: str, system_calls: bytes, limits: Mapping[Role, Limits]) -> str:
    """The digest that pins everything a program could notice about its sandbox."""
    return digest_json(
        {
            "kind": kind,
            "runtime": runtime,
            "system_calls": digest_bytes(system_calls),
            "limits": {role.value: value.model_dump() for role, value in limits.items()},
        }
    )


class StartLimiter:
    """So many starts a core at a time, in each event loop that uses the factory; two at least.

    One where a start is nearly all processor time, so that more at once would only make each slower.
    """

    def __init__(self, per_core: int = 1) -> None:
        self._per_core = per_core
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def slot(self) -> asyncio.Semaphore:
        """To be entered around one start."""
        loop = asyncio.get_running_loop()
        if loop not in self._slots:
            self._slots[loop] = asyncio.Semaphore(max(2, self._per_core * (os.cpu_count() or 2)))
        return self._slots[loop]


class Sandbox(Protocol):
    """One running sandbox. Frames are described in `supervisor`."""

    async def send(self, frame: Mapping[str, Any]) -> None:
        """Raises SandboxLost when it is gone, ProtocolError for a frame past the limits."""
        ...

    async def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """The next frame. Raises SandboxLost at the end of the stream, TimeoutError after `timeout` s."""
        ...

    async def responds(self, seconds: float = 5.0) -> bool:
        """Whether process 1 still answers. Frames on their way are lost: only when idle, or before closing.

        Tells a program that took too long from a sandbox that is frozen, of which nothing may be concluded.
        """
        ...

    async def close(self) -> None:
        """Destroy it and everything inside. Idempotent."""
        ...

    def oom_killed(self) -> bool:
        """Whether the kernel killed a process inside for lack of memory; False where it cannot be proved."""
        ...


class SandboxFactory(Protocol):
    """Starts sandboxes of one kind."""

    kind: str
    identity: str
    """Digest over the execution environment, the supervisor, the system call filter and the limits."""
    proves: frozenset[str]
    """What holds on this machine: "oom", out of memory is counted; "cpus", processor time is limited."""

    async def start(self, role: Role, *, lake: Path | None = None, assets: Path | None = None) -> Sandbox:
        """A ready sandbox. Raises SandboxLost. `lake` and `assets` are refused for the controller."""
        ...

    async def close(self) -> None:
        """Release what the factory itself holds. Idempotent."""
        ...
