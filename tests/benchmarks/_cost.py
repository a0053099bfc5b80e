"""What the benchmarks share: processor time here and in sandboxes, memory, a stock of sandboxes."""

import asyncio
import contextlib
import os
import resource
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any

from broker.model import Completion, Sampling
from broker.sandbox.base import Role, Sandbox, SandboxFactory
from broker.sandbox.containers import connect
from broker.sandbox.factory import open_factory
from broker.sandbox.labels import HOST, host_label
from broker.sandbox.pool import SandboxPool
from tests.fixtures.episodes import template
from tests.fixtures.sandboxes import CACHE, real_runtime

_ACCOUNTING = Path("/sys/fs/cgroup/cpuacct")


def open_sandboxes(kind: Any) -> SandboxFactory:
    """A factory of the real thing. Raises SandboxLost where it cannot be."""
    return open_factory(kind, real_runtime(), CACHE)


class StubModel:
    """Answers at once, with ids that were made beforehand: what remains is the broker's own cost.

    No answer comes again before a thousand others, for the host remembers the ids of texts that do.
    """

    def __init__(self, text: str = "I look at the table and then I answer.") -> None:
        texts = [f"{text} This is number {number}." for number in range(1_100)]
        ids = [(*template().encode_text(each), *template().end_ids) for each in texts]
        self._completions = cycle(
            Completion(token_ids=each, logprobs=(-0.5,) * len(each), finish_reason="stop") for each in ids
        )

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        return next(self._completions)


@dataclass(frozen=True)
class Cpu:
    """Seconds of processor time."""

    host: float
    sandboxes: float | None
    """None where the kernel keeps no account that includes them."""


class CpuMeter:
    """CPU of this process, and of all that it started, ended or not (cgroup version 1 and root only).

    A process that was killed together with its parent is missing in `RUSAGE_CHILDREN`, so the sandboxes are
    measured by a group of the kernel's accounting. Containers are the daemon's children and have their own.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None

    def __enter__(self) -> "CpuMeter":
        folder = _ACCOUNTING / f"rinr-bench-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            (folder / "cgroup.procs").write_text(str(os.getpid()))
            self._folder = folder
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                for member in (self._folder / "cgroup.procs").read_text().split():  # the watchdog is another
                    (_ACCOUNTING / "cgroup.procs").write_text(member)
                self._folder.rmdir()

    def read(self) -> Cpu:
        own = resource.getrusage(resource.RUSAGE_SELF)
        host = own.ru_utime + own.ru_stime
        if self._folder is None:
            return Cpu(host, None)
        folders = [self._folder, _ACCOUNTING / "docker"]
        total = sum(int((folder / "cpuacct.usage").read_text()) for folder in folders if folder.exists())
        return Cpu(host, total / 1e9 - host)


def difference(after: Cpu, before: Cpu) -> Cpu:
    sandboxes = None
    if after.sandboxes is not None and before.sandboxes is not None:
        sandboxes = after.sandboxes - before.sandboxes
    return Cpu(after.host - before.host, sandboxes)


class Stock:
    """A factory whose sandboxes were started beforehand and end afterwards: what lies between is left."""

    def __init__(self, inner: SandboxFactory) -> None:
        self.kind, self.identity, self.proves = inner.kind, inner.identity, inner.proves
        self._inner = inner
        self._stock: dict[Role, list[Sandbox]] = {role: [] for role in Role}
        self._used: list[Sandbox] = []

    async def fill(self, episodes: int, lake: Path | None) -> None:
        for role in Role:
            shown = lake if role is Role.EXECUTION else None
            starts = (self._inner.start(role, lake=shown) for _ in range(episodes))
            self._stock[role] += await asyncio.gather(*starts)

    async def start(self, role: Role, *, lake: Path | None = None, assets: Path | None = None) -> Sandbox:
        sandbox = self._stock[role].pop()
        self._used.append(sandbox)
        return _Kept(sandbox)

    async def close(self) -> None:
        waiting = [sandbox for stock in self._stock.values() for sandbox in stock]
        await asyncio.gather(*(sandbox.close() for sandbox in (*self._used, *waiting)))
        self._used.clear()
        self._stock = {role: [] for role in Role}


class _Kept:
    """Ends when its stock does, not when its episode does."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.send, self.receive, self.oom_killed = sandbox.send, sandbox.receive, sandbox.oom_killed

    async def close(self) -> None:
        return None


def descendants(pid: int) -> Generator[int]:
    """The processes that a process started, and theirs."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def of_docker() -> Generator[int]:
    """The processes in this process's containers, their shims, and the daemons of this machine."""
    client = connect()
    mine = {"label": f"{HOST}={host_label()}"}
    names = [str(one.id) for one in client.containers.list(filters=mine, ignore_removed=True)]
    client.close()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            said = (folder / "cgroup").read_text() + (folder / "cmdline").read_text()
            daemon = (folder / "comm").read_text().strip() in ("dockerd", "containerd")
            if daemon or any(name in said for name in names):
                yield int(folder.name)


def proportional_bytes(pids: Iterable[int]) -> int:
    """Memory of processes, what they share counted once in all."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def milliseconds(seconds: float | None, count: int = 1) -> str:
    return "-" if seconds is None else f"{1000 * seconds / count:.2f}"


async def filled(pool: SandboxPool, size: int) -> None:
    """Wait until so many sandboxes wait."""
    while pool.waiting() < size:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
