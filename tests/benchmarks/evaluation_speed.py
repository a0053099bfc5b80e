"""A step's comparison on Val: 4 programs on 90 tasks each, 64 in flight, and how busy that keeps an engine.

    python -m tests.benchmarks.evaluation_speed [--sandboxes pool stock fake] [--sequences 8] [--profile]

First with a model that answers at once: what is left is ours, from the queue to the stored episodes and the
decision. Then with an engine of so many sequences at a time that takes 50 ms a call: the share of its
sequence time that was used, while episodes were queued and to the last call. `pool`: real sandboxes, as a
run has them, each start and end counted (`sandbox_starts` takes these apart); `stock`: real ones that were
started before and end after; `fake`: threads of this process, which isolate nothing, so that the limiter is
measured and no sandbox. The limits stand beside: 5 s, and 95 %.
"""

import argparse
import asyncio
import cProfile
import heapq
import os
import pstats
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.broker import Broker
from broker.evaluation import evaluate
from broker.harness import Harness
from broker.limiter import Limiter
from broker.model import Completion, Sampling
from broker.record import GradedEpisode
from broker.sandbox.pool import pooled
from catalog.store import Store
from harness_lab.control_world import make_world
from harness_lab.selection import CandidateResult, select
from tasks.config import SandboxConfig
from tasks.measure import episode_ids, put_episodes, spent_on
from tests.benchmarks._cost import CpuMeter, Stock, StubModel, difference, open_sandboxes
from tests.fixtures.episodes import make_broker
from tests.fixtures.fake_sandbox import FakeFactory
from verifier.grade import Grader
from verifier.release import Release

LIMIT_SECONDS, LIMIT_BUSY = 5.0, 0.95
PROGRAMS, VAL, IN_FLIGHT = 4, 90, 64
PROGRAM = """
def run(task, api):
    messages = [{"role": "system", "content": task["system"]}, {"role": "user", "content": task["prompt"]}]
    for code in ("rows = [1, 2, 3]", "print(sum(rows))"):
        messages.append({"role": "assistant", "content": api.generate(messages)})
        seen = str(api.execute(code))
        messages.append({"role": "user", "content": "Observation: " + seen, "source": "tool"})
    api.submit(api.generate(messages))
"""


@dataclass
class Engine:
    """So many sequences at a time, each call takes `latency` seconds, as in a process of its own: a call that
    waits in its queue begins when another ends, however late this process's event loop may be."""

    latency: float
    sequences: int
    inner: StubModel = field(default_factory=StubModel)
    calls: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Begin and end of each."""

    def __post_init__(self) -> None:
        self._free = [0.0] * self.sequences

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        now = time.monotonic()
        began = max(now, heapq.heappop(self._free))
        ended = began + self.latency
        heapq.heappush(self._free, ended)
        self.calls.append((began, ended))
        await asyncio.sleep(ended - now)
        return await self.inner.complete(prompt_ids, sampling)

    def busy(self, until: float) -> float:
        """Share of the sequence time in use from the first call to `until`."""
        first = min(began for began, _ in self.calls)
        used = sum(min(ended, until) - began for began, ended in self.calls if began < until)
        return used / (self.sequences * (until - first))


def a_broker(model: Any, release: Release, sandboxes: Any) -> Broker:
    plain = make_broker(model, sandboxes)
    return Broker(
        model=model,
        template=plain.template,
        sandboxes=sandboxes,
        grader=Grader(release),
        release=release,
        budgets=plain.budgets,
        guidance="",
        limiter=Limiter(IN_FLIGHT),
    )


async def compare(broker: Broker, store: Store, finished: list[float]) -> None:
    """What a step does from the finalists to its decision."""
    programs = [Harness(code=f"{PROGRAM}# {number}\n") for number in range(PROGRAMS)]

    def ended(_episode: GradedEpisode) -> None:
        finished.append(time.monotonic())

    results = await asyncio.gather(
        *(evaluate(broker, program, "val", seed=1, progress=ended) for program in programs)
    )
    for _, episodes in results:
        put_episodes(store, episodes)
        spent_on(episodes)
        episode_ids(episodes)
    (parent, _), *others = results
    select(parent, [CandidateResult(index=i, evaluation=found) for i, (found, _) in enumerate(others)])


async def ready(name: str, kind: str, release: Release) -> Any:
    """A factory of that name, with whatever has to be started beforehand."""
    if name == "fake":
        return FakeFactory()
    inner = open_sandboxes(kind)
    if name == "pool":
        return pooled(inner, SandboxConfig().pool)
    stock = Stock(inner)
    for _ in range(PROGRAMS):
        await stock.fill(VAL, release.lake)
    return stock


async def at_once(options: Any, name: str, release: Release, store: Store, profile: Any) -> None:
    # The meter is there first: it knows only of processes that were started under it.
    with CpuMeter() as meter:
        sandboxes = await ready(name, options.kind, release)
        try:
            await asyncio.sleep(0.5)
            before, began = meter.read(), time.monotonic()
            if profile is not None:
                profile.enable()
            await compare(a_broker(StubModel(), release, sandboxes), store, [])
            if profile is not None:
                profile.disable()
            seconds, cpu = time.monotonic() - began, difference(meter.read(), before)
        finally:
            await sandboxes.close()
    inside = "-" if cpu.sandboxes is None else f"{cpu.sandboxes:.2f}"
    print(
        f"{name:5} | at once: {PROGRAMS * VAL} episodes in {seconds:.2f} s ({seconds / LIMIT_SECONDS:.2f} of "
        f"{LIMIT_SECONDS:g} s); CPU {cpu.host:.2f} s of the host, {inside} s of the sandboxes",
        flush=True,
    )


async def with_engine(options: Any, name: str, release: Release, store: Store) -> None:
    sandboxes = await ready(name, options.kind, release)
    engine, finished = Engine(options.latency, options.sequences), list[float]()
    try:
        await compare(a_broker(engine, release, sandboxes), store, finished)
    finally:
        await sandboxes.close()
    last = max(end for _, end in engine.calls)
    # Until then some episode was always waiting for a place.
    queued = sorted(finished)[PROGRAMS * VAL - IN_FLIGHT - 1]
    print(
        f"{name:5} | {options.latency * 1000:.0f} ms a call, {options.sequences} sequences: busy "
        f"{engine.busy(queued):.1%} while episodes were queued, {engine.busy(last):.1%} to the last call "
        f"(limit {LIMIT_BUSY:.0%}); {len(engine.calls)} calls in {last - engine.calls[0][0]:.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", default="bubblewrap")
    parser.add_argument("--sandboxes", nargs="+", default=["pool", "stock", "fake"])
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="print where this process spends its time")
    options = parser.parse_args()
    profile = cProfile.Profile(time.process_time) if options.profile else None
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="rinr-bench-") as name:
        folder = Path(name)
        make_world(folder / "release", val=VAL, noise=0.0, seed=1, shuffled=False)
        release, store = Release.load(folder / "release"), Store(folder / "store")
        for name in options.sandboxes:
            asyncio.run(at_once(options, name, release, store, profile))
            asyncio.run(with_engine(options, name, release, store))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
