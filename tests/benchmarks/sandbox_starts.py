"""What the start and the end of a bubblewrap sandbox cost, as processor time of all that takes part.

    python -m tests.benchmarks.sandbox_starts [--starts 200] [--at-once 4] [--idle 0.05]

In turn: `zygote`, as a run has them; `alone`, each by its own bubblewrap, as where zygotes cannot work. Half
of them are controllers, half executions; each idles a little, so that its rehearsal is counted, and is
closed. `host` is this process; `sandboxes` all that it started, bubblewrap, zygotes and helpers included;
`kernel` its threads, which take name spaces apart, less what they took while nothing was started (other work
on the machine is in it). The limit stands beside: 4 programs on 90 tasks in 5 s, two cores, leave 9.7 ms a
start.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.sandbox.base import DEFAULT_LIMITS, Role
from broker.sandbox.bubblewrap import BubblewrapFactory
from tests.benchmarks._cost import CpuMeter, difference
from tests.fixtures.sandboxes import CACHE, real_runtime

LIMIT_MS = 9.7
_KERNEL_THREAD = 0x20_0000
_SETTLES = 1.0
"""Seconds in which the kernel takes apart what was closed."""


def kernel_seconds() -> float:
    """Processor time of the kernel's own threads so far."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[6]) & _KERNEL_THREAD:
                total += int((folder / "schedstat").read_text().split()[0])
    return total / 1e9


@asynccontextmanager
async def opened(zygotes: bool) -> AsyncGenerator[BubblewrapFactory]:
    factory = BubblewrapFactory(real_runtime(), CACHE, DEFAULT_LIMITS, zygotes=zygotes)
    try:
        yield factory
    finally:
        await factory.close()


async def measure(options: Any, zygotes: bool, lake: Path, meter: CpuMeter) -> None:
    async with opened(zygotes) as factory:
        places = asyncio.Semaphore(options.at_once)

        async def one(role: Role) -> None:
            async with places:
                sandbox = await factory.start(role, lake=lake if role is Role.EXECUTION else None)
                await asyncio.sleep(options.idle)
                await sandbox.close()

        await asyncio.gather(*(one(role) for role in Role))
        await asyncio.sleep(_SETTLES)
        quiet, began = kernel_seconds(), time.monotonic()
        await asyncio.sleep(_SETTLES)
        idle_rate = (kernel_seconds() - quiet) / (time.monotonic() - began)
        before, kernel, began = meter.read(), kernel_seconds(), time.monotonic()
        await asyncio.gather(*(one(role) for _ in range(options.starts // 2) for role in Role))
        seconds = time.monotonic() - began
        await asyncio.sleep(_SETTLES)
        cpu = difference(meter.read(), before)
        kernel = kernel_seconds() - kernel - idle_rate * (time.monotonic() - began)
        fault = factory.nursery.fault
    inside = cpu.sandboxes or 0.0
    per = 1000 / options.starts
    total = (cpu.host + inside + kernel) * per
    print(
        f"{'zygote' if zygotes else 'alone':6} | host {cpu.host * per:.2f}, sandboxes {inside * per:.2f}, "
        f"kernel {kernel * per:.2f}, together {total:.2f} ms a start ({total / LIMIT_MS:.2f} of {LIMIT_MS:g} "
        f"ms); {options.starts / seconds:.0f} starts/s{f'; {fault}' if zygotes and fault else ''}",
        flush=True,
    )


async def run(options: Any) -> None:
    with CpuMeter() as meter, tempfile.TemporaryDirectory(prefix="rinr-bench-") as lake:
        Path(lake).chmod(0o755)
        for _ in range(options.rounds):
            for zygotes in (True, False):
                await measure(options, zygotes, Path(lake), meter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--idle", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
