"""A warm pool around any sandbox factory: started sandboxes wait for the episodes that will ask for them.

Mounts are fixed when a sandbox is made, so each one waits for exactly what it was made for: a role, a lake,
an asset set. It serves one episode and is destroyed by it; what the pool saves is the wait, not the start.
The identity is the inner factory's, for a program cannot tell a pooled sandbox from a fresh one. Must not
know which back end is behind it, nor what an episode is.
"""

import asyncio
import contextlib
import contextvars
import time
from collections import OrderedDict, deque
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from broker.errors import SandboxLost
from broker.sandbox.base import Role, Sandbox, SandboxFactory

IDLE_SECONDS: Final = 120.0
"""A sandbox that nobody took for so long is destroyed, and what nobody asked for is not made again. Far below
the age at which a sandbox ends by itself, so that none is handed out to die in the middle of an episode."""

ANSWER_SECONDS: Final = 1.0
"""A waiting sandbox answers in a fraction of a millisecond. One that is frozen never does, and the episode
that was given it would be lost; on a drowning machine a fresh one in place of a slow one costs less."""


@dataclass(frozen=True)
class _Want:
    """What a sandbox is made for."""

    role: Role
    lake: Path | None
    assets: Path | None


@dataclass
class _Demand:
    """How often a want was asked for, and when last."""

    times: int = 0
    last: float = 0.0


class _Shelf:
    """The waiting sandboxes of one event loop, and the one task that refills and empties it."""

    def __init__(self, inner: SandboxFactory, size: int, idle_seconds: float) -> None:
        self._inner = inner
        self._size = size
        self._idle_seconds = idle_seconds
        self._waiting: dict[_Want, deque[tuple[float, Sandbox]]] = {}
        self._demands: OrderedDict[_Want, _Demand] = OrderedDict()
        """Most recently asked last."""
        self._starting = 0
        """Starts that an episode waits for; refills stand back meanwhile."""
        self._changed = asyncio.Event()
        # Born in an episode's task, but no part of it: neither its clock nor its context.
        self.keeper = asyncio.get_running_loop().create_task(self._keep(), context=contextvars.Context())

    async def take(self, want: _Want) -> Sandbox | None:
        """A waiting sandbox that still lives and answers, or None."""
        shelf = self._waiting.get(want, ())
        while shelf:
            _, sandbox = shelf.popleft()
            try:
                lives = await sandbox.responds(ANSWER_SECONDS)
            except BaseException:  # cancelled: nobody else knows of it any more
                await asyncio.shield(_destroy(sandbox))
                raise
            if lives:
                return sandbox
            await _destroy(sandbox)
        return None

    def note(self, want: _Want) -> None:
        """Somebody was given such a sandbox, so another will be wanted."""
        demand = self._demands.setdefault(want, _Demand())
        demand.times += 1
        demand.last = time.monotonic()
        self._demands.move_to_end(want)
        self._changed.set()

    @contextlib.contextmanager
    def somebody_waits(self) -> Generator[None]:
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            self._changed.set()

    def count(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def _keep(self) -> None:
        """Until cancelled, which also the end of its event loop does; then nothing is left on the shelf."""
        try:
            while True:
                self._changed.clear()
                await self._remove_surplus()
                want = None if self._starting else self._missing()
                if want is None or not await self._add(want):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), self._idle_seconds / 4)
        finally:
            waiting = [sandbox for shelf in self._waiting.values() for _, sandbox in shelf]
            self._waiting.clear()
            await asyncio.gather(*map(_destroy, waiting))

    async def _add(self, want: _Want) -> bool:
        """Start one more. A failure is told to nobody: who needs a sandbox next will meet it himself."""
        try:
            sandbox = await self._inner.start(want.role, lake=want.lake, assets=want.assets)
        except SandboxLost:
            return False
        self._waiting.setdefault(want, deque()).append((time.monotonic(), sandbox))
        return True

    def _targets(self) -> dict[_Want, int]:
        """How many of each want should wait: equal shares of the size."""
        oldest = time.monotonic() - self._idle_seconds
        for want in [want for want, demand in self._demands.items() if demand.last < oldest]:
            del self._demands[want]
        # Every episode asks for what has no assets; a task's own assets count from the second time.
        lively = [want for want, demand in self._demands.items() if want.assets is None or demand.times > 1]
        # In an order that asking does not change, or places would wander and sandboxes be made in vain.
        lively.sort(key=lambda want: (want.assets is not None, str(want)))
        share, rest = divmod(self._size, len(lively)) if lively else (0, 0)
        return {want: share + (place < rest) for place, want in enumerate(lively)}

    def _missing(self) -> _Want | None:
        """The want that lacks most, if there is room."""
        if self.count() >= self._size:
            return None
        lacks = {want: number - len(self._waiting.get(want, ())) for want, number in self._targets().items()}
        want = max(lacks, key=lambda want: lacks[want], default=None)
        return want if want is not None and lacks[want] > 0 else None

    async def _remove_surplus(self) -> None:
        """Destroy what waited too long, and what stands in the way of something asked for since."""
        oldest = time.monotonic() - self._idle_seconds
        targets = self._targets()
        full = self.count() >= self._size
        lacking = any(len(self._waiting.get(want, ())) < number for want, number in targets.items())
        for want, shelf in list(self._waiting.items()):
            while shelf and (
                shelf[0][0] < oldest or (full and lacking and len(shelf) > targets.get(want, 0))
            ):
                await _destroy(shelf.popleft()[1])
            if not shelf and want not in self._demands:
                del self._waiting[want]


async def _destroy(sandbox: Sandbox) -> None:
    # What cannot be removed now is labelled, and swept by the next host.
    with contextlib.suppress(SandboxLost):
        await sandbox.close()


class SandboxPool:
    """A `SandboxFactory` that keeps up to `size` started sandboxes of another factory waiting."""

    def __init__(self, inner: SandboxFactory, size: int, *, idle_seconds: float = IDLE_SECONDS) -> None:
        if size < 2:
            raise ValueError(f"a pool of {size} cannot hold one sandbox of each role: give 2 or more")
        self.kind = inner.kind
        self.identity = inner.identity
        self.proves = inner.proves
        self.warm = self.cold = 0
        """How many sandboxes were handed out from the pool, and how many were started on demand."""
        self._inner = inner
        self._size = size
        self._idle_seconds = idle_seconds
        self._closed = False
        # A sandbox's channel belongs to one event loop; a run may open several, one after the other.
        self._shelves: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shelf] = WeakKeyDictionary()

    async def start(self, role: Role, *, lake: Path | None = None, assets: Path | None = None) -> Sandbox:
        """A ready sandbox, at once if one waits. Raises SandboxLost."""
        shelf, want = self._shelf(), _Want(role, lake, assets)
        sandbox = await shelf.take(want)
        if sandbox is None:
            with shelf.somebody_waits():
                sandbox = await self._inner.start(role, lake=lake, assets=assets)
            self.cold += 1
        else:
            self.warm += 1
        shelf.note(want)
        return sandbox

    def waiting(self) -> int:
        """How many sandboxes wait in the running event loop."""
        return self._shelf().count()

    def _shelf(self) -> _Shelf:
        if self._closed:
            raise SandboxLost("the sandbox pool is closed")
        loop = asyncio.get_running_loop()
        if loop not in self._shelves:
            self._shelves[loop] = _Shelf(self._inner, self._size, self._idle_seconds)
        return self._shelves[loop]

    async def empty(self) -> None:
        """Destroy what waits in the running event loop; the next start begins to refill."""
        shelf = self._shelves.pop(asyncio.get_running_loop(), None)
        if shelf is not None:
            shelf.keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await shelf.keeper

    async def close(self) -> None:
        """Destroy what waits, then close the inner factory."""
        self._closed = True
        try:
            await self.empty()
        finally:
            await self._inner.close()


def pooled(inner: SandboxFactory, size: int) -> SandboxFactory:
    """The factory in a pool of this size; as it is for 0."""
    return SandboxPool(inner, size) if size else inner
