"""Sandboxes under observation: what they are on the host, and what they leave there."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import docker

from broker.sandbox.base import Role, Sandbox, SandboxFactory
from broker.sandbox.factory import open_factory
from broker.sandbox.labels import HOST, host_label
from tests.fixtures.leftovers import marked_processes, numbers_of
from tests.fixtures.sandbox_probe import CACHE, SMALL, open_or_skip, sandbox_runtime

Kind = Literal["bubblewrap", "docker"]
BACK_ENDS: tuple[Kind, ...] = get_args(Kind)
_LOOKS = 200
"""Looks, some seconds in all, until the kernel has buried what was killed on a busy machine."""


def _lives(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def _find(wanted: Callable[[Path], bool]) -> list[Path]:
    """Live processes on this machine, of those that we may look at."""
    found: list[Path] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted(folder) and _lives(folder):
                found.append(folder)
        except OSError:
            continue
    return found


def _namespace(process: Path) -> str:
    return str((process / "ns" / "pid").readlink())


def processes_in(namespace: str) -> list[int]:
    """What lives in a sandbox, whatever session it fled to and whatever program it runs now."""
    return [int(process.name) for process in _find(lambda process: _namespace(process) == namespace)]


def _channels() -> set[str]:
    """Sockets and memory files that this process holds."""
    links: set[str] = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.add(str(descriptor.readlink()))
        except OSError:
            continue
    return {link for link in links if link.startswith(("socket:", "/memfd:"))}


class Place:
    """One back end under strict limits, recognisable on the host by an odd deadline."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        seconds = 900.0 + os.getpid() % 1000 + (0.125 if kind == "docker" else 0.25)
        self._mark = f'"wall_seconds": {seconds}'
        self._channels = _channels()
        limits = {role: value.model_copy(update={"wall_seconds": seconds}) for role, value in SMALL.items()}
        self.factory: SandboxFactory = open_factory(kind, sandbox_runtime(), CACHE, limits)
        self.namespaces: set[str] = set()
        """Of the sandboxes that are open; the kernel uses their numbers again."""

    async def start(self, role: Role, **shown: Any) -> tuple[Sandbox, str]:
        """A sandbox, and its process namespace as the host sees it."""
        sandbox = await self.factory.start(role, **shown)
        seen = {_namespace(process) for process in self._marked()}
        (namespace,) = seen - self.namespaces - {_namespace(Path("/proc/self"))}
        self.namespaces.add(namespace)
        return sandbox, namespace

    async def end(self, sandbox: Sandbox, namespace: str) -> None:
        """Close it; nothing lives in it after that."""
        await sandbox.close()
        await settle(namespace, 0)
        self.namespaces.remove(namespace)

    def _marked(self) -> list[Path]:
        return [Path(f"/proc/{pid}") for pid in marked_processes(self._mark)]

    @asynccontextmanager
    async def sandbox(self, role: Role, **shown: Any) -> AsyncIterator[tuple[Sandbox, str]]:
        """The same, closed in the end, and nothing of it left."""
        sandbox, namespace = await self.start(role, **shown)
        try:
            yield sandbox, namespace
        finally:
            await self.end(sandbox, namespace)

    def busy(self, role: Role) -> list[int]:
        """The host's numbers of process 1 of all its sandboxes in this role that have a worker."""
        found: list[int] = []
        for process in self._marked():
            command = (process / "cmdline").read_text()
            if numbers_of(process)[-1] == "1" and f'"role": "{role.value}"' in command:
                found += [int(process.name)] * (len(processes_in(_namespace(process))) > 1)
        return found

    def left_behind(self) -> dict[str, Any]:
        """What this process's sandboxes of this kind have left on the machine, by kind of thing."""
        found: dict[str, Any] = {
            "processes": self._marked(),
            "zygotes": marked_processes(self._mark, zygotes=True),
            "sandboxes": self.namespaces,
            "groups": list(Path("/sys/fs/cgroup").glob(f"**/rinr-{host_label()}-*")),
            "folders": list(Path(tempfile.gettempdir()).glob(f"rinr-{host_label()}-*_sockets_*")),
            "channels": _channels() - self._channels,
        }
        if self.kind == "docker":
            client = docker.from_env()
            label = f"{HOST}={host_label()}"
            found["containers"] = client.containers.list(
                all=True, filters={"label": label}, ignore_removed=True
            )
            client.close()
        return {what: things for what, things in found.items() if things}


async def settle(namespace: str, count: int) -> None:
    """Wait until so many processes live there; dying takes a moment."""
    for _ in range(_LOOKS):
        if len(processes_in(namespace)) == count:
            return
        await asyncio.sleep(0.02)
    assert len(processes_in(namespace)) == count


@asynccontextmanager
async def open_place(kind: Kind) -> AsyncIterator[Place]:
    """A place, or the reason why this machine has none. In the end nothing is left of all that ran there."""
    await open_or_skip(kind).close()
    place = Place(kind)
    try:
        yield place
    finally:
        await place.factory.close()
        for _ in range(_LOOKS):
            if not place.left_behind():
                break
            await asyncio.sleep(0.02)
        left = place.left_behind()
        assert left == {}, left
