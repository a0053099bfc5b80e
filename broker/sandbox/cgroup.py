"""A kernel's group for each sandbox, where this user may make one: limits of memory and processor time over
all its processes together, and the only proof that the kernel ran out of memory there (HOST-07). Both
versions of the kernel's interface. Must not know what runs in the group.

Paths are plain texts where each start comes by: joining `Path`s took a quarter of what one costs the host.
"""

import asyncio
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.sandbox.labels import host_label, lives

_FOLDERS: Final = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
"""Version 1, where each controller has its own tree, and version 2."""
_VERSION_1: Final = f"{_FOLDERS[0]}/"
_CPU_FOLDERS: Final = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
_PERIOD: Final = 100_000
"""Microseconds over which processor time is shared out; the kernel's own default."""
_NAME: Final = re.compile(r"rinr-(\d+-\d+)-\d+")
_counter = itertools.count()


def group_kills(folder: Path) -> int:
    """How often the kernel killed a member of a group for lack of memory; 0 when the group is gone."""
    place = str(folder)
    first, second = "memory.events", "memory.oom_control"
    if place.startswith(_VERSION_1):  # asked after every call, so the right name first
        first, second = second, first
    for name in (first, second):
        try:
            with open(f"{place}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                text = file.read()
        except OSError:
            continue
        if found := re.search(rb"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(found[1])
    return 0


def memory_group_of(pid: int, name: str) -> Path | None:
    """The group folder of a running process, or None when it cannot be seen from here.

    `name` stands in the group's path: process ids of another machine (or namespace) mean something else here.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("memory", "") and name in path:
            folder = _FOLDERS[controllers == ""] / path.lstrip("/")
            if (folder / "memory.oom_control").exists() or (folder / "memory.events").exists():
                return folder
    return None


class SandboxGroup:
    """The group folders of one sandbox: one of version 2, or one for each controller. One at least."""

    def __init__(self, memory: Path | None, cpu: Path | None) -> None:
        self._memory = memory
        self._folders = [folder for folder in dict.fromkeys((memory, cpu)) if folder is not None]
        self._kills = 0
        self.proves = frozenset({"oom"} if memory else ()) | frozenset({"cpus"} if cpu else ())
        """What holds for its members: that out of memory is counted, that processor time is limited."""

    @property
    def members(self) -> list[Path]:
        """A process that writes its id into each of these is in the group, and so is all it starts."""
        return [folder / "cgroup.procs" for folder in self._folders]

    def open_members(self) -> list[int]:
        """The same, open. To the kernel whoever opened it writes, whoever it is passed to."""
        return [os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self._folders]

    def kills(self) -> int:
        """How often the kernel killed a member for lack of memory; the last known number after removal."""
        if self._memory is not None:
            self._kills = max(self._kills, group_kills(self._memory))
        return self._kills

    def discard(self) -> None:
        """Remove a group that never had a member."""
        for folder in self._folders:
            folder.rmdir()

    async def remove(self) -> None:
        """Needs all its processes dead; waits up to two seconds for the kernel to let go of the last one."""
        self.kills()
        for folder in self._folders:
            await _remove(folder)


async def _remove(folder: Path) -> None:
    for _ in range(200):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            await asyncio.sleep(0.01)
        else:
            return


def _set(path: str, text: str) -> bool:
    """Write to a file of the kernel's; False where there is none. OSError when the kernel refuses."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    return True


def _limit_memory(folder: Path, memory_bytes: int) -> bool:
    """Write the limit in whichever version's files are there; False where there are none."""
    place = str(folder)
    for name, swap, swap_bytes in (
        ("memory.max", "memory.swap.max", 0),
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", memory_bytes),
    ):
        if _set(f"{place}/{name}", str(memory_bytes)):
            _set(f"{place}/{swap}", str(swap_bytes))
            return True
    return False


def _limit_cpu(folder: Path, cpus: float) -> bool:
    """The same for processor time."""
    place, quota = str(folder), str(max(1_000, int(cpus * _PERIOD)))
    if _set(f"{place}/cpu.max", f"{quota} {_PERIOD}"):
        return True
    return _set(f"{place}/cpu.cfs_period_us", str(_PERIOD)) and _set(f"{place}/cpu.cfs_quota_us", quota)


def make_group(memory_bytes: int, cpus: float) -> SandboxGroup | None:
    """A new group with those of the limits that this user can set here; None where there are none."""
    name = f"rinr-{host_label()}-{next(_counter)}"
    memory = _make(_FOLDERS, name, lambda folder: _limit_memory(folder, memory_bytes))
    try:
        cpu = memory if memory and _limit_cpu(memory, cpus) else None
    except OSError:
        cpu = None
    cpu = cpu or _make(_CPU_FOLDERS, name, lambda folder: _limit_cpu(folder, cpus))
    return SandboxGroup(memory, cpu) if memory or cpu else None


def _make(parents: tuple[Path, ...], name: str, limit: Callable[[Path], bool]) -> Path | None:
    for parent in parents:
        folder = parent / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if limit(folder):
                return folder
        except OSError:
            pass
        folder.rmdir()
    return None


def sweep_groups() -> int:
    """Remove groups whose host process is dead; says how many went."""
    removed = 0
    for folder in (path for parent in {*_FOLDERS, *_CPU_FOLDERS} for path in parent.glob("rinr-*")):
        name = _NAME.fullmatch(folder.name)
        if name and not lives(name[1]):
            try:
                folder.rmdir()
                removed += 1
            except OSError:
                continue
    return removed
