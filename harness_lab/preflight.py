"""Preflight: does a program execute and finish on tasks that are known to be finishable? (SEL-01)

The designated tasks are a short list of Train tasks, measured at phase start: those that the inherited
harness finishes in a valid format, then those it finishes; of them those that leave it a call, then those
with the fewest calls. Where it finishes none, or
none in a valid format, preflight asks no more of a candidate than of the parent: a weak inherited harness
or a hard task never ends a run. Right or wrong plays no part.
"""

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from broker.attempt import Attempt, task_seed
from broker.broker import Broker
from broker.budgets import Budgets
from broker.harness import Harness
from broker.record import GradedEpisode, StopReason
from verifier.task import Task

MAX_UNFINISHED: Final = 3
"""Unfinished designated tasks after which a candidate fails."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PreflightAttempt(_Frozen):
    """One first-answer attempt, without its verdict on right or wrong."""

    task_id: str
    executed: bool
    """No error of the program's own."""
    finished: bool
    """It submitted, within its budgets."""
    format_valid: bool
    stop_reason: StopReason
    error: str | None
    model_calls: int
    tool_calls: int


class Designated(_Frozen):
    """The phase's preflight list, best first, and what the inherited harness showed on it."""

    task_ids: tuple[str, ...]
    finishable: bool
    """The inherited harness finishes the first task of the list."""
    format_valid: bool
    """It also answers it in a valid format, so a candidate must do so on one task as well."""
    attempts: tuple[PreflightAttempt, ...]
    """Of the inherited harness, on all tasks tried."""


class Preflight(_Frozen):
    """The verdict on one candidate."""

    passed: bool
    reason: str
    attempts: tuple[PreflightAttempt, ...]


async def designate(broker: Broker, harness: Harness, tasks: Sequence[Task], seed: int) -> Designated:
    """Try the inherited harness on these Train tasks and choose the list."""
    attempts = tuple(_attempt(episode) for episode in await _run(broker, harness, tasks, seed))
    finished = [attempt for attempt in attempts if attempt.executed and attempt.finished]
    formatted = [attempt for attempt in finished if attempt.format_valid]
    # Stable: equally good tasks keep the order of the Train plan. The rest fills the list up, so that a
    # candidate has three tasks to fail on wherever three were tried.
    ordered = sorted(attempts, key=lambda attempt: _hardness(attempt, broker.budgets))
    return Designated(
        task_ids=tuple(attempt.task_id for attempt in ordered),
        finishable=bool(finished),
        format_valid=bool(formatted),
        attempts=attempts,
    )


def _hardness(attempt: PreflightAttempt, budgets: Budgets) -> tuple[bool, bool, bool, int]:
    finished = attempt.executed and attempt.finished
    # A candidate may well need one call more than its parent; tools may be forbidden altogether.
    spent = attempt.model_calls >= budgets.model_calls or 0 < budgets.tool_calls <= attempt.tool_calls
    calls = attempt.model_calls + attempt.tool_calls
    return not (finished and attempt.format_valid), not finished, spent, calls


async def preflight(
    broker: Broker, harness: Harness, designated: Designated, tasks: Sequence[Task], seed: int
) -> Preflight:
    """Run a candidate on the list until it finishes one task, breaks, or leaves three unfinished."""
    by_id = {task.id: task for task in tasks}
    attempts: list[PreflightAttempt] = []
    for task_id in designated.task_ids[:MAX_UNFINISHED]:
        [graded] = await _run(broker, harness, [by_id[task_id]], seed)
        attempt = _attempt(graded)
        attempts.append(attempt)
        if not attempt.executed:
            return Preflight(
                passed=False, reason=f"the program fails: {attempt.error}", attempts=tuple(attempts)
            )
        if attempt.finished and (attempt.format_valid or not designated.format_valid):
            return Preflight(passed=True, reason="executes and finishes", attempts=tuple(attempts))
    if not designated.finishable:
        return Preflight(
            passed=True,
            reason="executes; no designated task is known to be finishable",
            attempts=tuple(attempts),
        )
    return Preflight(passed=False, reason=_unfinished(attempts), attempts=tuple(attempts))


def _unfinished(attempts: Sequence[PreflightAttempt]) -> str:
    ends = ", ".join(
        "no valid answer format" if attempt.finished else attempt.stop_reason.value for attempt in attempts
    )
    return f"executes, did not finish any of {len(attempts)} designated tasks: {ends}"


async def _run(broker: Broker, harness: Harness, tasks: Sequence[Task], seed: int) -> list[GradedEpisode]:
    if any(task.split != "train" for task in tasks):
        raise ValueError("preflight runs on Train tasks only")
    results = await broker.run_all(
        [
            Attempt(
                task=task, harness=harness, mode="evaluation", temperature=0.0, seed=task_seed(seed, task.id)
            )
            for task in tasks
        ]
    )
    return [result for result in results if isinstance(result, GradedEpisode)]


def _attempt(graded: GradedEpisode) -> PreflightAttempt:
    record = graded.record
    return PreflightAttempt(
        task_id=record.task_id,
        executed=record.error is None,
        finished=bool(record.submissions),
        format_valid=graded.verdict.format_valid,
        stop_reason=record.stop_reason,
        error=f"{record.error.kind}: {record.error.message}" if record.error else None,
        model_calls=len(record.model_calls),
        tool_calls=len(record.tool_calls),
    )
