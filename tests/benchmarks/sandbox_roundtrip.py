"""How long a tool call and a hand-out take, on either back end, beside `docker exec` and the limits.

    python -m tests.benchmarks.sandbox_roundtrip [--kind bubblewrap docker] [--calls 300]

A round trip is one `execute` of `print(1)` in a warm sandbox, as the host sees it. A hand-out is `start` of a
sandbox that waits in the pool; a cold start stands beside it. Limits: 1 ms and 20 ms, medians. The peer is
what most frameworks do, one `docker exec` a call, through Docker's command line and into the same image.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Any

from broker.errors import SandboxLost
from broker.sandbox.base import Role, Sandbox, SandboxFactory
from broker.sandbox.pool import SandboxPool
from tests.benchmarks._cost import filled, open_sandboxes
from tests.fixtures.episodes import release
from tests.fixtures.sandboxes import real_runtime

CALL_MS, HAND_OUT_MS = 1.0, 20.0


async def _milliseconds(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return 1000 * (time.perf_counter() - began)


async def _round_trips(inner: SandboxFactory, calls: int) -> list[float]:
    sandbox = await inner.start(Role.EXECUTION, lake=release().lake)

    async def call() -> None:
        await sandbox.send({"op": "execute", "code": "print(1)", "seconds": 10})
        assert (await sandbox.receive(20))["stdout"] == "1\n"

    try:
        for _ in range(20):
            await call()
        return [await _milliseconds(call) for _ in range(calls)]
    finally:
        await sandbox.close()


async def _starts(
    factory: SandboxFactory, count: int, before: Callable[[], Awaitable[object]] | None = None
) -> list[float]:
    """One after the other; closing is not counted."""
    found: list[float] = []
    for _ in range(count):
        if before is not None:
            await before()
        sandboxes: list[Sandbox] = []

        async def start(into: list[Sandbox] = sandboxes) -> None:
            into.append(await factory.start(Role.EXECUTION, lake=release().lake))

        found.append(await _milliseconds(start))
        await sandboxes[0].close()
    return found


async def _measure(kind: str, calls: int) -> None:
    inner = open_sandboxes(kind)
    try:
        trips = await _round_trips(inner, calls)
        cold = await _starts(inner, 10)
        pool = SandboxPool(inner, 4)
        await _starts(pool, 1)
        warm = await _starts(pool, 20, lambda: filled(pool, 4))
        assert pool.warm == 20
        await pool.empty()
    finally:
        await inner.close()
    _print(f"{kind}: execute", trips, CALL_MS)
    _print(f"{kind}: hand-out of a pooled sandbox", warm, HAND_OUT_MS)
    _print(f"{kind}: cold start", cold, None)
    print(f"{'':36}   hand-out / cold start {statistics.median(warm) / statistics.median(cold):.4f}")


def _print(name: str, values: list[float], limit: float | None) -> None:
    median = statistics.median(values)
    ninth = statistics.quantiles(values, n=10)[-1]
    beside = "" if limit is None else f" | {median / limit:.2f} of the limit of {limit:g} ms"
    print(
        f"{name:36} | median {median:8.2f} ms | best {min(values):8.2f} | 90 % {ninth:8.2f}{beside}",
        flush=True,
    )


def _docker_exec() -> None:
    """`docker exec` of the image's Python, which starts anew each time and so keeps no variables."""
    images = ["docker", "images", "rinr-runtime", "--format", "{{.Repository}}:{{.Tag}}"]
    try:
        found = subprocess.run(images, capture_output=True, text=True, check=True).stdout.split()
        image = found[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        print("docker exec: not measured, no daemon or no image")
        return
    runtime = real_runtime()
    settings = [part for item in runtime.environment.items() for part in ("-e", "=".join(item))]
    idle = [runtime.python, "-I", "-S", "-c", "import time; time.sleep(600)"]
    command = ["docker", "run", "--rm", "-d", "--network", "none", *settings, image, *idle]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        command = ["docker", "exec", name, runtime.python, "-I", "-S", "-c", "print(1)"]
        found_ms: list[float] = []
        for _ in range(10):
            began = time.perf_counter()
            assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
            found_ms.append(1000 * (time.perf_counter() - began))
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)
    _print("docker exec, a process a call", found_ms, CALL_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", nargs="+", default=["bubblewrap", "docker"])
    parser.add_argument("--calls", type=int, default=300)
    options: Any = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    for kind in options.kind:
        try:
            asyncio.run(_measure(kind, options.calls))
        except SandboxLost as error:
            print(f"{kind}: not measured: {error}")
    _docker_exec()


if __name__ == "__main__":
    main()
