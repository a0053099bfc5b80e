"""What the orchestration itself costs: episodes of 3 generate + 2 execute + 1 submit, no model time.

    python -m tests.benchmarks.episode_overhead [--episodes 64] [--in-flight 1 64]

The model is scripted and in this process, the sandboxes are real (bubblewrap). CPU is of this process and of
its ended children, so it holds the start and the end of both sandboxes and the interpreters inside.
"""

import argparse
import asyncio
import cProfile
import pstats
import resource
import time
from dataclasses import dataclass
from typing import Any

from broker.attempt import task_seed
from broker.record import GradedEpisode
from broker.sandbox.base import SandboxFactory
from tests.fixtures.episodes import ScriptedModel, attempt, make_broker, release
from tests.fixtures.sandboxes import real_sandboxes

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
    in_flight: int
    episodes: int
    seconds: float
    own_cpu: float
    child_cpu: float


async def measure(sandboxes: SandboxFactory, episodes: int, in_flight: int) -> Cost:
    broker = make_broker(ScriptedModel("I look at the table and then I answer."), sandboxes, limit=in_flight)
    task = release().tasks[0]
    attempts = [
        attempt(PROGRAM, task, "rl", seed=task_seed(0, task.id, number), repetition=number)
        for number in range(episodes)
    ]
    before, began = _cpu(), time.monotonic()
    results = await broker.run_all(attempts)
    seconds, after = time.monotonic() - began, _cpu()
    graded = [result.record for result in results if isinstance(result, GradedEpisode)]
    assert len(graded) == episodes
    assert {record.stop_reason for record in graded} == {"first_answer"}
    assert {len(record.tool_calls) for record in graded} == {2}
    return Cost(in_flight, episodes, seconds, after[0] - before[0], after[1] - before[1])


def _cpu() -> tuple[float, float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, ended.ru_utime + ended.ru_stime


async def _run(options: Any) -> list[Cost]:
    sandboxes = real_sandboxes()
    try:
        await measure(sandboxes, 2, 1)  # warm caches
        return [await measure(sandboxes, options.episodes, in_flight) for in_flight in options.in_flight]
    finally:
        await sandboxes.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--profile", action="store_true", help="print where this process spends its time")
    options = parser.parse_args()
    profile = cProfile.Profile()
    if options.profile:
        profile.enable()
    costs = asyncio.run(_run(options))
    profile.disable()
    print("in flight | episodes | episodes/s | host CPU ms/episode | sandbox CPU ms/episode")
    for cost in costs:
        own, child = (1000 * value / cost.episodes for value in (cost.own_cpu, cost.child_cpu))
        rate = cost.episodes / cost.seconds
        print(f"{cost.in_flight:9} | {cost.episodes:8} | {rate:10.1f} | {own:19.1f} | {child:22.1f}")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
