"""A client-side rate limit: so many requests and so many tokens a minute, first come, first served.

Waiting for it is the host's own queue, so it is never charged to a program (HOST-03). Must not know what is
asked or who answers.
"""

import asyncio
import time

from broker.clock import add_queued, not_charged


class _Bucket:
    """Fills steadily up to one minute's worth. May go into debt, so that a big request only waits long."""

    def __init__(self, per_minute: int) -> None:
        self._per_second = per_minute / 60
        self._most = float(per_minute)
        self._level = self._most
        self._at = time.monotonic()

    def take(self, amount: float) -> float:
        """Take at once; gives the seconds to wait before using it."""
        now = time.monotonic()
        self._level = min(self._most, self._level + (now - self._at) * self._per_second) - amount
        self._at = now
        return max(0.0, -self._level / self._per_second)

    def give_back(self, amount: float) -> None:
        self._level = min(self._most, self._level + amount)


class RateLimit:
    """Requests and tokens of one endpoint; None is no limit. Without locks: a place is taken at once."""

    def __init__(self, requests_per_minute: int | None = None, tokens_per_minute: int | None = None) -> None:
        self._requests = _Bucket(requests_per_minute) if requests_per_minute else None
        self._tokens = _Bucket(tokens_per_minute) if tokens_per_minute else None
        self.waited_seconds = 0.0
        """Summed over all requests."""

    async def turn(self, tokens: int) -> None:
        """Wait until a request of so many tokens, prompt and answer, may be sent."""
        delay = max(
            self._requests.take(1) if self._requests else 0.0,
            self._tokens.take(tokens) if self._tokens else 0.0,
        )
        if delay <= 0:
            return
        self.waited_seconds += delay
        add_queued(delay)
        with not_charged():
            await asyncio.sleep(delay)

    def give_back(self, tokens: int) -> None:
        """Tokens of a turn that were not used after all; negative when more were."""
        if self._tokens is not None:
            self._tokens.give_back(tokens)
