"""The episode clock: what is charged to a program, and what is the host's own waiting.

The clock of HOST-03 runs while the program, its tools or its model calls work. It stands still while the
host waits in a queue of its own, starts a sandbox, asks the researcher, or repeats a failed request. The
parts that wait (limiter, client) do not know which episode they serve: they mark the time with
`not_charged()`, and the clock of the running asyncio task picks it up. Knows nothing of what follows when
the time is used up.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar


class EpisodeClock:
    """Counts charged and waited seconds of one episode, up to a limit."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._started: float | None = None
        self._waited = 0.0
        self._wait_depth = 0
        self._wait_since = 0.0
        self._waited_before = 0.0
        self.queued = 0.0
        """The waited seconds that were spent in the host's own queues."""

    def start(self) -> None:
        """Begin to charge; earlier waits stay in `waited` but are not subtracted."""
        self._started = time.monotonic()
        self._waited_before = self.waited

    def begin_wait(self) -> None:
        if self._wait_depth == 0:
            self._wait_since = time.monotonic()
        self._wait_depth += 1

    def end_wait(self) -> None:
        self._wait_depth -= 1
        if self._wait_depth == 0:
            self._waited += time.monotonic() - self._wait_since

    def refund(self, seconds: float) -> None:
        """Take back time that was charged and turned out to be the host's (a failed request)."""
        self._waited += seconds

    @property
    def waited(self) -> float:
        """Seconds that were not charged, a wait that still lasts included."""
        running = time.monotonic() - self._wait_since if self._wait_depth else 0.0
        return self._waited + running

    @property
    def elapsed(self) -> float:
        """Charged seconds since `start`."""
        if self._started is None:
            return 0.0
        return max(0.0, time.monotonic() - self._started - (self.waited - self._waited_before))

    @property
    def remaining(self) -> float:
        return self.limit - self.elapsed


current_clock: ContextVar[EpisodeClock | None] = ContextVar("current_clock", default=None)
"""The clock of the episode that the running asyncio task serves."""


@contextmanager
def not_charged() -> Generator[None]:
    """Mark the body as the host's own waiting. Nested marks count once."""
    clock = current_clock.get()
    if clock is None:
        yield
        return
    clock.begin_wait()
    try:
        yield
    finally:
        clock.end_wait()


def add_queued(seconds: float) -> None:
    """Tell the running episode's clock how much of its waiting was a queue."""
    clock = current_clock.get()
    if clock is not None:
        clock.queued += seconds


def refund(seconds: float) -> None:
    """Take back charged time from the running episode's clock, if there is one."""
    clock = current_clock.get()
    if clock is not None:
        clock.refund(seconds)
