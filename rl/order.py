"""Which Train tasks an update trains on (RL-01, RL-03).

A permutation fixed by seed and ids, and a cursor that wraps only at the end of the list. Must not know
episodes. (The harness phases draw their interactions from an order of their own.)
"""

from collections.abc import Sequence

from catalog.digest import digest_json
from rl.errors import TrainingError
from verifier.release import Release
from verifier.task import Task


def training_tasks(release: Release) -> tuple[Task, ...]:
    """The RL index: the release's Train split. Raises `TrainingError` if it meets Val or Test (RL-03)."""
    train = release.split("train")
    held_out = {task.id for name in ("val", "test") for task in release.split(name)}
    shared = sorted(task.id for task in train if task.id in held_out)
    if shared:
        raise TrainingError(f"RL-03: Train tasks also stand in Val or Test: {', '.join(shared[:5])}")
    return train


def training_order(seed: int, tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The permutation: sorted by a digest of (seed, id), whatever order the tasks come in."""
    return tuple(sorted(tasks, key=lambda task: digest_json([seed, "rl", task.id])))


def draw_batch(order: Sequence[Task], cursor: int, count: int) -> tuple[Task, ...]:
    """The `count` tasks from `cursor` on, each once. Raises `TrainingError` when there are fewer."""
    if count > len(order):
        raise TrainingError(
            f"a batch of {count} tasks needs {count} Train tasks, the release has {len(order)}: "
            f"set rl.prompts_per_batch to at most {len(order)}"
        )
    return tuple(order[(cursor + offset) % len(order)] for offset in range(count))
