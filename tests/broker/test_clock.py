"""The episode clock charges the program's time and not the host's own waiting."""

import asyncio
import time

import pytest

from broker.clock import EpisodeClock, current_clock, not_charged, refund
from broker.limiter import Limiter


def test_waiting_is_not_charged_and_nested_waits_count_once() -> None:
    clock = EpisodeClock(10)
    current_clock.set(clock)
    assert clock.elapsed == 0
    clock.start()
    with not_charged(), not_charged():
        time.sleep(0.05)
        assert clock.elapsed < 0.02, "a wait that still lasts is not charged either"
    time.sleep(0.02)
    assert 0.015 < clock.elapsed < 0.05
    refund(10)
    assert clock.elapsed == 0
    current_clock.set(None)
    with not_charged():
        pass


async def test_the_limiter_bounds_what_runs_and_measures_the_wait() -> None:
    limiter = Limiter(2)

    async def hold() -> float:
        async with limiter.slot() as waited:
            await asyncio.sleep(0.03)
        return waited

    waits = await asyncio.gather(*(hold() for _ in range(6)))
    assert limiter.peak == 2
    assert limiter.running == 0
    assert max(waits) > 0.05
    assert limiter.waited_seconds == pytest.approx(sum(waits))


def test_one_limiter_serves_several_event_loops_in_turn() -> None:
    limiter = Limiter(1)

    async def both() -> None:
        async def hold() -> None:
            async with limiter.slot():
                await asyncio.sleep(0.001)

        await asyncio.gather(hold(), hold())

    asyncio.run(both())
    asyncio.run(both())


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Limiter(0)
