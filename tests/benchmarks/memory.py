"""Memory: 64 concurrent episodes, 10,000 stub episodes one after the other, one idle pooled sandbox.

    python -m tests.benchmarks.memory [--kind bubblewrap docker] [--episodes 10000]

Concurrent episodes wait inside their third model call until all are there; then this process and everything
it started is summed (proportional set sizes), with Docker also what runs in its containers, their shims and
the daemon itself. The stub episodes run on the test suite's sandboxes in threads, for what is tested is
whether the broker keeps anything: resident memory may grow by 5 % after the first tenth, descriptors not.
"""

import argparse
import asyncio
import gc
import os
import time
from pathlib import Path
from typing import Any

from broker.attempt import task_seed
from broker.errors import SandboxLost
from broker.model import Completion, Sampling
from broker.sandbox.base import Role
from broker.sandbox.pool import SandboxPool
from tests.benchmarks._cost import (
    StubModel,
    descendants,
    filled,
    of_docker,
    open_sandboxes,
    proportional_bytes,
)
from tests.benchmarks.episode_overhead import PROGRAM
from tests.fixtures.episodes import attempt, make_broker, release
from tests.fixtures.fake_sandbox import FakeFactory

LIMIT_BYTES = 2 << 30
LIMIT_GROWTH = 0.05
IN_FLIGHT = 64
MIB = 1 << 20


class Gathering(StubModel):
    """Holds every episode in its last model call until all have come."""

    def __init__(self, episodes: int) -> None:
        super().__init__()
        self._missing = episodes
        self.all_here = asyncio.Event()
        self.go_on = asyncio.Event()
        self._calls: dict[int, int] = {}

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        task = id(asyncio.current_task())
        self._calls[task] = self._calls.get(task, 0) + 1
        if sampling.seed % 3 == 2:  # seeds are spaced by three, so this is an episode's third call
            self._missing -= 1
            if not self._missing:
                self.all_here.set()
            await self.go_on.wait()
        return await super().complete(prompt_ids, sampling)


async def concurrent(kind: str) -> None:
    inner = open_sandboxes(kind)
    model = Gathering(IN_FLIGHT)
    broker = make_broker(model, inner, limit=IN_FLIGHT)
    task = release().tasks[0]
    attempts = [
        attempt(PROGRAM, task, "rl", seed=3 * number, repetition=number) for number in range(IN_FLIGHT)
    ]
    alone = proportional_bytes([os.getpid()])
    began = time.monotonic()
    running = asyncio.ensure_future(broker.run_all(attempts))
    await asyncio.wait({running, asyncio.ensure_future(model.all_here.wait())}, return_when="FIRST_COMPLETED")
    seconds = time.monotonic() - began
    inside = {*descendants(os.getpid()), *(of_docker() if kind == "docker" else ())}
    total = proportional_bytes([os.getpid(), *inside])
    model.go_on.set()
    await running
    await inner.close()
    print(
        f"{IN_FLIGHT} concurrent episodes on {kind}: {total / MIB:.0f} MiB, {len(inside)} processes and this "
        f"({alone / MIB:.0f} MiB before), all there after {seconds:.1f} s | "
        f"{total / LIMIT_BYTES:.2f} of the limit of 2 GiB",
        flush=True,
    )


async def idle(kind: str) -> None:
    size = 16
    inner = open_sandboxes(kind)
    pool = SandboxPool(inner, size)
    await (await pool.start(Role.CONTROLLER)).close()
    await (await pool.start(Role.EXECUTION, lake=release().lake)).close()
    await filled(pool, size)
    await asyncio.sleep(0.5)
    total = proportional_bytes({*descendants(os.getpid()), *(of_docker() if kind == "docker" else ())})
    await pool.close()
    print(f"one idle sandbox in a pool of {size} on {kind}: {total / size / MIB:.2f} MiB", flush=True)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def leaks(episodes: int) -> bool:
    """True if memory and descriptors stayed flat."""
    sandboxes = FakeFactory()
    broker = make_broker(StubModel(), sandboxes, limit=16)
    task = release().tasks[0]
    batch = max(100, episodes // 10)
    program = PROGRAM.replace("rows = open('/lake/metals.csv').read().splitlines()", "rows = ['a']")
    seen: list[tuple[int, int]] = []
    for start in range(0, episodes, batch):
        results = await broker.run_all(
            [
                attempt(program, task, "rl", seed=task_seed(0, task.id, number), repetition=number)
                for number in range(start, start + batch)
            ]
        )
        assert len(results) == batch
        del results
        sandboxes.started.clear()
        sandboxes.frames.clear()
        gc.collect()
        await asyncio.sleep(0.2)
        seen.append((_resident(), _descriptors()))
    growth = seen[-1][0] / seen[0][0] - 1
    files = seen[-1][1] - seen[0][1]
    first, last = (memory / MIB for memory, _ in (seen[0], seen[-1]))
    print(
        f"{episodes} stub episodes: {first:.0f} MiB after {batch}, {last:.0f} MiB at the end "
        f"({growth:+.1%}, limit {LIMIT_GROWTH:.0%}) | descriptors {seen[0][1]} -> {seen[-1][1]}",
        flush=True,
    )
    return growth <= LIMIT_GROWTH and files <= 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", nargs="+", default=["bubblewrap", "docker"])
    parser.add_argument("--episodes", type=int, default=10_000)
    options: Any = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    for kind in options.kind:
        try:
            asyncio.run(idle(kind))
            asyncio.run(concurrent(kind))
        except SandboxLost as error:
            print(f"{kind}: not measured: {error}")
    return 0 if asyncio.run(leaks(options.episodes)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
