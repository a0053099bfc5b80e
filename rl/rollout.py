"""The episodes of one update: fresh, on-policy, prompts x attempts, each with a seed of its own (RL-01).

Must not know advantages, losses or optimisers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.attempt import Attempt, Lost, task_seed
from broker.broker import Broker
from broker.budgets import Budgets
from broker.harness import Harness
from broker.record import GradedEpisode
from rl.contract import RlContract
from rl.errors import TrainingError
from rl.rows import RowBatch, build_rows
from verifier.task import Task


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The episodes of a batch and the rows made of them."""

    batch: RowBatch
    episodes: tuple[GradedEpisode, ...]
    """Those that were not lost."""
    seconds: float

    @property
    def generated_tokens(self) -> int:
        calls = (call for episode in self.episodes for call in episode.record.model_calls)
        return sum(len(call.completion.token_ids) for call in calls)


def plan_attempts(
    tasks: Sequence[Task], harness: Harness, contract: RlContract, *, seed: int, step: int
) -> list[Attempt]:
    """All attempts of the first task, then of the second. `step` is never 0 and never used twice."""
    return [
        Attempt(
            task=task,
            harness=harness,
            mode="rl",
            temperature=contract.temperature,
            seed=task_seed(seed, task.id, repetition, step),
            repetition=repetition,
        )
        for task in tasks
        for repetition in range(contract.attempts)
    ]


async def collect(
    broker: Broker,
    attempts: Sequence[Attempt],
    contract: RlContract,
    on_episode: Callable[[GradedEpisode], None] | None = None,
) -> Rollout:
    """Run the attempts. Raises `TrainingError` for a task outside Train (RL-03) or an empty batch (RL-07)."""
    check_trained_on(attempts)
    started = time.perf_counter()
    results = await broker.run_all(attempts, progress=on_episode, masked_ok=True)
    seconds = time.perf_counter() - started
    return make_rollout(results, attempts, contract, broker.budgets, seconds)


def check_trained_on(attempts: Sequence[Attempt]) -> None:
    """Raise `TrainingError` for a task outside Train (RL-03)."""
    strangers = sorted({attempt.task.id for attempt in attempts if attempt.task.split != "train"})
    if strangers:
        raise TrainingError(f"RL-03: {', '.join(strangers[:5])} must not be trained on: not in Train")


def make_rollout(
    results: Sequence[GradedEpisode | Lost],
    attempts: Sequence[Attempt],
    contract: RlContract,
    budgets: Budgets,
    seconds: float,
) -> Rollout:
    """What came of the attempts, as rows. Raises `TrainingError` with the first loss for an empty batch."""
    graded = [None if isinstance(result, Lost) else result for result in results]
    instances = list(dict.fromkeys(attempt.task.id for attempt in attempts))
    try:
        batch = build_rows(graded, instances, contract.attempts, contract.reward, budgets)
    except TrainingError as error:
        losses = [result.error for result in results if isinstance(result, Lost)]
        raise TrainingError(f"{error}; first loss: {losses[0]}" if losses else str(error)) from error
    return Rollout(batch=batch, episodes=tuple(item for item in graded if item), seconds=seconds)
