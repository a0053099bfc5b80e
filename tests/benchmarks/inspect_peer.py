"""CPU an episode beside Inspect AI's CPU a sample: the same chain of calls, both with a stub model.

    python -m tests.benchmarks.inspect_peer [--samples 256]

Each runs 3 generations, 2 tool calls and one graded answer, 64 at a time. Inspect's tool is a function in its
own process; ours is code in a real sandbox, started beforehand, whose host side is what is compared (the CPU
inside stands beside). Inspect counts tokens with an encoding that it would download: its stub states its
usage, which spares it that. The limit: at most half of its CPU. It runs from an environment of its own,
`.cache/bench-venv`, that `./run bench` makes.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks._cost import CpuMeter, open_sandboxes
from tests.benchmarks.episode_overhead import Cost, in_stock

LIMIT = 0.5
IN_FLIGHT = 64
PEER = Path(__file__).with_name("_inspect_sample.py")
PYTHON = Path(__file__).parents[2] / ".cache/bench-venv/bin/python"


async def ours(samples: int, meter: CpuMeter) -> list[Cost]:
    """Batches of 64, so that not too many sandboxes wait at once; the first one only warms up."""
    inner = open_sandboxes("bubblewrap")
    try:
        costs = [
            await in_stock(inner, IN_FLIGHT, IN_FLIGHT, meter, None) for _ in range(samples // IN_FLIGHT + 1)
        ]
    finally:
        await inner.close()
    return costs[1:]


def theirs(samples: int, python: Path) -> dict[str, float]:
    """What the peer's own process says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), str(PEER), str(samples), str(IN_FLIGHT)]
        environment = {**os.environ, "INSPECT_LOG_DIR": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--python", type=Path, default=PYTHON, help="interpreter that has inspect-ai")
    options: Any = parser.parse_args()
    if not options.python.exists():
        print(
            f"not measured: no inspect-ai in {options.python.parents[1]}; ./run bench makes it",
            file=sys.stderr,
        )
        return 0
    print(f"load {os.getloadavg()[0]:.1f}; {options.samples} of each, {IN_FLIGHT} at once")
    with CpuMeter() as meter:
        costs = asyncio.run(ours(options.samples, meter))
    peer = theirs(options.samples, options.python)
    episodes = sum(cost.episodes for cost in costs)
    host = 1000 * sum(cost.cpu.host for cost in costs) / episodes
    rate = episodes / sum(cost.seconds for cost in costs)
    each = ", ".join(f"{cost.host_ms:.2f}" for cost in costs)
    print(f"broker, host: {host:.2f} ms CPU an episode (batches: {each}), {rate:.1f} episodes/s")
    print(f"Inspect AI {peer['version']}: {peer['cpu_ms']:.2f} ms CPU a sample, {peer['rate']:.1f} samples/s")
    print(f"ratio {host / peer['cpu_ms']:.2f}, limit {LIMIT}")
    insides = [cost.cpu.sandboxes for cost in costs if cost.cpu.sandboxes is not None]
    if len(insides) == len(costs):
        inside = 1000 * sum(insides) / episodes
        both = (host + inside) / peer["cpu_ms"]
        print(f"inside our sandboxes: {inside:.2f} ms; with it the ratio is {both:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
