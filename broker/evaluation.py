"""One program over one whole split: first answers, temperature 0, matched seeds (SEL-03, SEL-04, REP-05).

A score exists only for complete coverage. `Evaluation` is what may be stored and compared; the episodes with
their verdicts come beside it. Must not know which program is better.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from broker.attempt import Attempt, task_seed
from broker.broker import Broker
from broker.harness import Harness
from broker.record import GradedEpisode, StopReason
from verifier.task import Split, Task


class CoverageError(Exception):
    """An evaluation does not hold exactly one outcome for each task of its split."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskOutcome(_Frozen):
    """What became of one task. Private: it holds the verdict."""

    task_id: str
    family: str
    subtopic: str
    material_group: str
    correct: bool
    format_valid: bool
    submitted: bool
    stop_reason: StopReason
    error: str | None
    """The program's own fault, its kind first; None for every other end (SEL-08)."""
    model_calls: int
    tool_calls: int
    tool_errors: int
    answer_reason: str
    """The grader's short clause on the first answer."""


class Evaluation(_Frozen):
    """First answers of one program on a whole split."""

    harness: str
    """Digest of the program."""
    split: Split
    seed: int
    outcomes: tuple[TaskOutcome, ...]
    """Sorted by task id, each once."""

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        ids = [outcome.task_id for outcome in self.outcomes]
        if not ids or ids != sorted(set(ids)):
            raise ValueError("an evaluation needs outcomes, sorted by task id, each task once")
        return self

    @property
    def correct(self) -> int:
        return sum(outcome.correct for outcome in self.outcomes)

    @property
    def total(self) -> int:
        """The denominator: all tasks of the split."""
        return len(self.outcomes)

    @property
    def valid(self) -> int:
        """Tasks with a first answer in valid format."""
        return sum(outcome.format_valid for outcome in self.outcomes)

    @property
    def accuracy(self) -> float:
        return self.correct / self.total

    @property
    def errors(self) -> int:
        """Episodes that ended by the program's own fault."""
        return sum(outcome.error is not None for outcome in self.outcomes)


def outcome(task: Task, graded: GradedEpisode) -> TaskOutcome:
    """Reduce one graded episode."""
    record, verdict = graded.record, graded.verdict
    return TaskOutcome(
        task_id=task.id,
        family=task.family,
        subtopic=task.subtopic,
        material_group=task.material_group,
        correct=verdict.correct,
        format_valid=verdict.format_valid,
        submitted=bool(record.submissions),
        stop_reason=record.stop_reason,
        error=f"{record.error.kind}: {record.error.message}" if record.error else None,
        model_calls=len(record.model_calls),
        tool_calls=len(record.tool_calls),
        tool_errors=sum(bool(call.error) for call in record.tool_calls),
        answer_reason=verdict.reason,
    )


def summarise(
    harness: Harness, split: Split, tasks: Sequence[Task], episodes: Sequence[GradedEpisode], *, seed: int
) -> Evaluation:
    """An evaluation of exactly these tasks. Raises `CoverageError` naming what is missing or too many."""
    wanted, found = Counter(task.id for task in tasks), Counter(e.record.task_id for e in episodes)
    if wanted != found or not tasks:
        missing, extra = sorted((wanted - found).elements()), sorted((found - wanted).elements())
        raise CoverageError(
            f"{split}: {len(episodes)} episodes for {len(tasks)} tasks, which gives no score; "
            f"missing {missing[:5]}, too many {extra[:5]}"
        )
    by_id = {task.id: task for task in tasks}
    rows = [outcome(by_id[e.record.task_id], e) for e in episodes]
    rows.sort(key=lambda row: row.task_id)
    return Evaluation(harness=harness.digest, split=split, seed=seed, outcomes=tuple(rows))


async def evaluate(
    broker: Broker,
    harness: Harness,
    split: Split,
    *,
    seed: int,
    progress: Callable[[GradedEpisode], None] | None = None,
) -> tuple[Evaluation, list[GradedEpisode]]:
    """Run one program on every task of a split; episodes are in task id order.

    Raises `CoverageError` or one of `errors.OURS`; never a mean over fewer tasks.
    """
    tasks = broker.release.split(split)
    attempts = [
        Attempt(task=task, harness=harness, mode="evaluation", temperature=0.0, seed=task_seed(seed, task.id))
        for task in tasks
    ]
    results = await broker.run_all(attempts, progress=progress)
    episodes = [result for result in results if isinstance(result, GradedEpisode)]
    return summarise(harness, split, tasks, episodes, seed=seed), episodes
