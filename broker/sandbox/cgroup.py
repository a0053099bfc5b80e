"""A memory group for each sandbox, where this user may make one: the limit over all its processes together,
and the only proof that the kernel ran out of memory there (HOST-07). Version 1 and version 2 of the kernel's
interface. Must not know what runs in the group.
"""

import asyncio
import itertools
import re
from pathlib import Path
from typing import Final

from broker.sandbox.labels import host_label, lives

_FOLDERS: Final = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
_NAME: Final = re.compile(r"rinr-(\d+-\d+)-\d+")
_counter = itertools.count()


def group_kills(folder: Path) -> int:
    """How often the kernel killed a member of a group for lack of memory; 0 when the group is gone."""
    first, second = "memory.events", "memory.oom_control"
    if _FOLDERS[0] in folder.parents:  # asked after every call, so the right name first
        first, second = second, first
    for name in (first, second):
        try:
            with (folder / name).open("rb", buffering=0) as file:
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


class MemoryGroup:
    """One group folder. `remove` needs all its processes dead."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kills = 0

    @property
    def members(self) -> Path:
        """A process that writes its id here is in the group, and so is all it starts."""
        return self._folder / "cgroup.procs"

    def kills(self) -> int:
        """How often the kernel killed a member for lack of memory; the last known number after removal."""
        self._kills = max(self._kills, group_kills(self._folder))
        return self._kills

    def discard(self) -> None:
        """Remove a group that never had a member."""
        self._folder.rmdir()

    async def remove(self) -> None:
        """Waits up to two seconds for the kernel to let go of the last member."""
        self.kills()
        for _ in range(200):
            try:
                self._folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                await asyncio.sleep(0.01)
            else:
                return


def _limit(folder: Path, memory_bytes: int) -> bool:
    """Write the limit in whichever version's files are there; False where there are none."""
    for name, swap, swap_bytes in (
        ("memory.max", "memory.swap.max", 0),
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", memory_bytes),
    ):
        if (folder / name).exists():
            (folder / name).write_text(str(memory_bytes))
            if (folder / swap).exists():
                (folder / swap).write_text(str(swap_bytes))
            return True
    return False


def make_memory_group(memory_bytes: int) -> MemoryGroup | None:
    """A new group with this limit, or None where this user cannot make one."""
    for parent in _FOLDERS:
        folder = parent / f"rinr-{host_label()}-{next(_counter)}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if _limit(folder, memory_bytes):
                return MemoryGroup(folder)
        except OSError:
            pass
        folder.rmdir()
    return None


def sweep_memory_groups() -> int:
    """Remove groups whose host process is dead; says how many went."""
    removed = 0
    for folder in (path for parent in _FOLDERS for path in parent.glob("rinr-*")):
        name = _NAME.fullmatch(folder.name)
        if name and not lives(name[1]):
            try:
                folder.rmdir()
                removed += 1
            except OSError:
                continue
    return removed
