"""Full Val between two updates, with the engine that rolls out; only in stand-alone model mode (RL-11).

It measures and chooses nothing. An evaluation that our infrastructure loses is a missing point, never the end
of a training of hours. Must not know updates.
"""

import time
from typing import Final

from broker.broker import Broker
from broker.errors import OURS
from broker.evaluation import evaluate
from broker.harness import Harness
from rl.job_spec import Job, PeriodicEvaluation
from rl.services import Progress
from verifier.task import Split

SPLIT: Final[Split] = "val"
"""Whoever stops or chooses by this curve has used its tasks; Test stays for the boundaries."""


class Periodic:
    """The evaluations of one job. `await periodic.at(0)` before the first update, then after each."""

    def __init__(self, job: Job, broker: Broker, progress: Progress) -> None:
        self._job, self._broker, self._progress = job, broker, progress
        self.done: list[PeriodicEvaluation] = []

    def due(self, update: int) -> bool:
        """At 0, after every `evaluate_every` updates, and after the last."""
        every = self._job.contract.evaluate_every
        return every > 0 and (update % every == 0 or update == self._job.contract.updates)

    async def at(self, update: int) -> None:
        """Evaluate, if it is time to. First answers, temperature 0, the same seeds each time (SEL-03)."""
        if not self.due(update):
            return
        started = time.perf_counter()
        harness = Harness(code=self._job.harness_code)
        try:
            evaluation, _ = await evaluate(self._broker, harness, SPLIT, seed=self._job.seed)
            point = PeriodicEvaluation(update=update, evaluation=evaluation, seconds=_since(started))
        except OURS as error:
            lost = " ".join(f"{type(error).__name__}: {error}".split())
            point = PeriodicEvaluation(update=update, lost=lost, seconds=_since(started))
        self.done.append(point)
        found = point.evaluation
        said = {"correct": found.correct, "total": found.total} if found else {"lost": point.lost}
        self._progress.write("evaluation", {"update": update, "seconds": point.seconds, **said})


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 3)
