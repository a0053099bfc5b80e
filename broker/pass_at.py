"""pass@k of one program on one split: several sampled attempts of every task (SCHED-09, REP-01).

Another number than the accuracy of first answers, with attempts of its own: sampled at temperature 1, every
attempt with a seed that only the task and its number decide, so that two models are asked alike. Must not
know which model is better.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from math import comb
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from broker.attempt import Attempt, task_seed
from broker.broker import Broker
from broker.evaluation import CoverageError
from broker.harness import Harness
from broker.record import GradedEpisode
from verifier.task import Split, Task

TEMPERATURE: Final = 1.0


def pass_at(k: int, correct: int, attempts: int) -> float:
    """Chance that k attempts, drawn from these without return, hold a right one: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al. 2021, equation 1, exact in whole numbers up to the last division.

    >>> pass_at(1, 2, 8), pass_at(2, 1, 4), pass_at(8, 1, 8)
    (0.25, 0.5, 1.0)
    """
    if not (0 <= correct <= attempts and 1 <= k <= attempts):
        raise ValueError(f"pass@{k} of {correct} right in {attempts} attempts cannot be")
    every = comb(attempts, k)
    return (every - comb(attempts - correct, k)) / every


def budgets(attempts: int) -> tuple[int, ...]:
    """The k of a table: 1, 2, 4, ... up to all attempts.

    >>> budgets(8), budgets(6)
    ((1, 2, 4, 8), (1, 2, 4, 6))
    """
    powers = [1 << place for place in range(attempts.bit_length()) if 1 << place <= attempts]
    return tuple(dict.fromkeys([*powers, attempts]))


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskTally(_Frozen):
    """The attempts of one task. Private: it holds verdicts."""

    task_id: str
    family: str
    material_group: str
    correct: int = Field(ge=0)
    valid: int = Field(ge=0)
    """Attempts with an answer in valid format."""


class Sampled(_Frozen):
    """Several attempts of one program on every task of a split."""

    harness: str
    """Digest of the program."""
    split: Split
    seed: int
    attempts: int = Field(ge=1)
    """Of each task."""
    tallies: tuple[TaskTally, ...]
    """Sorted by task id, each once."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        ids = [tally.task_id for tally in self.tallies]
        if not ids or ids != sorted(set(ids)):
            raise ValueError("pass@k needs tallies, sorted by task id, each task once")
        if any(not tally.correct <= tally.valid <= self.attempts for tally in self.tallies):
            raise ValueError(f"a task has more right or valid answers than its {self.attempts} attempts")
        return self

    def of_task(self, k: int) -> dict[str, float]:
        """pass@k of each task."""
        return {tally.task_id: pass_at(k, tally.correct, self.attempts) for tally in self.tallies}

    def table(self) -> dict[int, float]:
        """pass@k for each k of `budgets`, the mean over all tasks of the split."""
        return {k: sum(self.of_task(k).values()) / len(self.tallies) for k in budgets(self.attempts)}

    @property
    def correct(self) -> int:
        return sum(tally.correct for tally in self.tallies)

    @property
    def valid(self) -> int:
        return sum(tally.valid for tally in self.tallies)

    @property
    def total(self) -> int:
        """All attempts of all tasks."""
        return self.attempts * len(self.tallies)


def plan(tasks: Sequence[Task], harness: Harness, attempts: int, seed: int) -> list[Attempt]:
    """All attempts of the first task, then of the second."""
    return [
        Attempt(
            task=task,
            harness=harness,
            mode="evaluation",
            temperature=TEMPERATURE,
            seed=task_seed(seed, task.id, repetition),
            repetition=repetition,
        )
        for task in tasks
        for repetition in range(attempts)
    ]


def tally(
    harness: Harness,
    split: Split,
    tasks: Sequence[Task],
    episodes: Sequence[GradedEpisode],
    *,
    attempts: int,
    seed: int,
) -> Sampled:
    """Count. Raises `CoverageError` unless every task has all its attempts: no mean over fewer (SEL-04)."""
    found = Counter(episode.record.task_id for episode in episodes)
    wrong = sorted({task.id for task in tasks if found[task.id] != attempts})
    if wrong or not tasks or len(episodes) != attempts * len(tasks):
        raise CoverageError(
            f"{split}: {len(episodes)} episodes for {len(tasks)} tasks with {attempts} attempts each, which "
            f"gives no pass@k; not complete: {wrong[:5]}"
        )
    correct = Counter(episode.record.task_id for episode in episodes if episode.verdict.correct)
    valid = Counter(episode.record.task_id for episode in episodes if episode.verdict.format_valid)
    rows = [
        TaskTally(
            task_id=task.id,
            family=task.family,
            material_group=task.material_group,
            correct=correct[task.id],
            valid=valid[task.id],
        )
        for task in sorted(tasks, key=lambda task: task.id)
    ]
    return Sampled(harness=harness.digest, split=split, seed=seed, attempts=attempts, tallies=tuple(rows))


async def sample(
    broker: Broker,
    harness: Harness,
    split: Split,
    *,
    attempts: int,
    seed: int,
    progress: Callable[[GradedEpisode], None] | None = None,
) -> tuple[Sampled, list[GradedEpisode]]:
    """Run every attempt of every task of a split. Raises `CoverageError` or one of `errors.OURS`."""
    tasks = broker.release.split(split)
    results = await broker.run_all(plan(tasks, harness, attempts, seed), progress=progress)
    episodes = [result for result in results if isinstance(result, GradedEpisode)]
    return tally(harness, split, tasks, episodes, attempts=attempts, seed=seed), episodes
