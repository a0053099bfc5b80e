"""What the orchestration itself costs: episodes of 3 generate + 2 execute + 1 submit, no model time.

    python -m tests.benchmarks.episode_overhead [--kind bubblewrap docker] [--episodes 64] [--in-flight 1 64]

The model is a stub in this process, the sandboxes are real. Three ways to have them: `cold`, each is started
when it is asked for; `pool`, a warm pool of 16 hands them out and refills meanwhile, all of it counted;
`stock`, they were started before and end after the measurement, which leaves the episodes alone. The limits
stand beside: 5 ms CPU of the host an episode, 300 episodes/s without sandbox start.
"""

import argparse
import asyncio
import cProfile
import os
import pstats
import time
from dataclasses import dataclass
from typing import Any

from broker.attempt import task_seed
from broker.errors import SandboxLost
from broker.record import GradedEpisode
from broker.sandbox.base import SandboxFactory
from broker.sandbox.pool import SandboxPool
from tests.benchmarks._cost import (
    Cpu,
    CpuMeter,
    Stock,
    StubModel,
    difference,
    filled,
    milliseconds,
    open_sandboxes,
)
from tests.fixtures.episodes import attempt, make_broker, release

LIMIT_MS, LIMIT_RATE = 5.0, 300.0
POOL = 16
PROGRAM = """
def run(task, api):
    messages = [{"role": "system", "content": task["system"]}, {"role": "user", "content": task["prompt"]}]
    for code in ("rows = open('/lake/metals.csv').read().splitlines()", "print(rows[0], len(rows))"):
        messages.append({"role": "assistant", "content": api.generate(messages)})
        seen = str(api.execute(code))
        messages.append({"role": "user", "content": "Observation: " + seen, "source": "tool"})
    api.submit(api.generate(messages))
"""


@dataclass(frozen=True)
class Cost:
    """Of one batch."""

    name: str
    in_flight: int
    episodes: int
    seconds: float
    cpu: Cpu

    @property
    def host_ms(self) -> float:
        return 1000 * self.cpu.host / self.episodes

    @property
    def rate(self) -> float:
        return self.episodes / self.seconds


async def measure(
    name: str, sandboxes: SandboxFactory, episodes: int, in_flight: int, meter: CpuMeter
) -> Cost:
    """Run a batch; the sandboxes are somebody else's to close."""
    broker = make_broker(StubModel(), sandboxes, limit=in_flight)
    task = release().tasks[0]
    attempts = [
        attempt(PROGRAM, task, "rl", seed=task_seed(0, task.id, number), repetition=number)
        for number in range(episodes)
    ]
    before, began = meter.read(), time.monotonic()
    results = await broker.run_all(attempts)
    seconds, after = time.monotonic() - began, meter.read()
    graded = [result.record for result in results if isinstance(result, GradedEpisode)]
    assert len(graded) == episodes
    assert {record.stop_reason for record in graded} == {"first_answer"}
    assert {len(record.tool_calls) for record in graded} == {2}
    return Cost(name, in_flight, episodes, seconds, difference(after, before))


async def in_stock(
    inner: SandboxFactory, episodes: int, in_flight: int, meter: CpuMeter, profile: cProfile.Profile | None
) -> Cost:
    """A batch on sandboxes that were started beforehand."""
    stock = Stock(inner)
    await stock.fill(episodes, release().lake)
    await asyncio.sleep(0.2)
    if profile is not None:
        profile.enable()
    try:
        return await measure("stock", stock, episodes, in_flight, meter)
    finally:
        if profile is not None:
            profile.disable()
        await stock.close()


async def _pooled(
    inner: SandboxFactory, episodes: int, in_flight: int, meter: CpuMeter
) -> tuple[Cost, float]:
    """A batch on a warm pool, and the share of sandboxes that waited in it."""
    pool = SandboxPool(inner, POOL)
    await measure("warm up", pool, 2, 1, meter)
    await filled(pool, POOL)
    warm, cold = pool.warm, pool.cold
    cost = await measure("pool", pool, episodes, in_flight, meter)
    share = (pool.warm - warm) / (pool.warm - warm + pool.cold - cold)
    await pool.empty()
    return cost, share


async def _run(options: Any, kind: str, meter: CpuMeter, profile: cProfile.Profile | None) -> None:
    inner = open_sandboxes(kind)
    try:
        await measure("warm up", inner, 4, 2, meter)
        for in_flight in options.in_flight:
            _print(kind, await measure("cold", inner, options.episodes, in_flight, meter))
            cost, share = await _pooled(inner, options.episodes, in_flight, meter)
            _print(kind, cost, f"{share:.0%} of the sandboxes were waiting")
            cost = await in_stock(inner, options.episodes, in_flight, meter, profile)
            ratios = f"{cost.host_ms / LIMIT_MS:.2f} of {LIMIT_MS:g} ms, {cost.rate / LIMIT_RATE:.2f} of "
            _print(kind, cost, f"{ratios}{LIMIT_RATE:g}/s")
    finally:
        await inner.close()


def _print(kind: str, cost: Cost, note: str = "") -> None:
    sandboxes = milliseconds(cost.cpu.sandboxes, cost.episodes)
    print(
        f"{kind:10} | {cost.name:5} | {cost.in_flight:9} | {cost.rate:10.1f} | {cost.host_ms:7.2f} | "
        f"{sandboxes:>9} | {note}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", nargs="+", default=["bubblewrap", "docker"])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--profile", action="store_true", help="print where this process spends its time")
    options = parser.parse_args()
    profile = cProfile.Profile(time.process_time) if options.profile else None
    print(f"load {os.getloadavg()[0]:.1f}; CPU in ms an episode")
    print("back end   | ready | in flight | episodes/s |    host | sandboxes |")
    with CpuMeter() as meter:
        for kind in options.kind:
            try:
                asyncio.run(_run(options, kind, meter, profile))
            except SandboxLost as error:
                print(f"{kind:10} | not measured: {error}")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
