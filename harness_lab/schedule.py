"""The order of Train tasks: one fixed permutation, one cursor through all phases (SCHED-05)."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from catalog.digest import digest_json


class TrainPlan(BaseModel):
    """What a whole run will draw from Train, said beforehand."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: int
    draws: int
    wraps: bool
    """Some task will be drawn again, because the list is exhausted."""


def train_order(seed: int, task_ids: Sequence[str]) -> tuple[str, ...]:
    """A permutation fixed by seed and ids, whatever order the ids come in."""
    return tuple(sorted(set(task_ids), key=lambda task_id: digest_json([seed, task_id])))


def draw(order: Sequence[str], cursor: int, count: int) -> tuple[str, ...]:
    """`count` ids from the cursor on; it wraps only at the end. The next cursor is `cursor + count`."""
    if not order:
        raise ValueError("the release has no Train task")
    return tuple(order[(cursor + offset) % len(order)] for offset in range(count))


def cursor_at(cycle: int, step: int, *, steps: int, interactions: int) -> int:
    """Where a step's draw begins; cycles and steps count from 1."""
    return ((cycle - 1) * steps + (step - 1)) * interactions


def plan(task_count: int, *, cycles: int, steps: int, interactions: int) -> TrainPlan:
    """Whether the run's draws exceed the Train split."""
    draws = cycles * steps * interactions
    return TrainPlan(tasks=task_count, draws=draws, wraps=draws > task_count)
