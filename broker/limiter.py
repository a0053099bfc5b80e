"""One shared limit for whatever runs at the same time: episodes, or sequences of one engine.

Waiting for a slot is the host's queue; it is measured and never charged to a program (HOST-03, case T17).
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from broker.clock import add_queued, not_charged


class Limiter:
    """At most `limit` holders at a time in one event loop; first come, first served."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a limit of {limit} at a time runs nothing: give 1 or more")
        self.limit = limit
        self.running = 0
        self.peak = 0
        """Most holders ever seen at once."""
        self.waited_seconds = 0.0
        """Summed over all holders."""
        # A semaphore belongs to one event loop; a run opens several, one after the other.
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[float]:
        """Hold a slot; gives the seconds that were waited for it."""
        semaphore = self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.limit))
        asked = time.monotonic()
        with not_charged():
            await semaphore.acquire()
        waited = time.monotonic() - asked
        add_queued(waited)
        self.waited_seconds += waited
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            yield waited
        finally:
            self.running -= 1
            semaphore.release()
