"""SkyRL's training data: one row for each prompt of each update, in our order, each with a uid of its own.

SkyRL groups attempts by uid, so that a task drawn twice is two groups; the task's id travels beside it. Must
not know SkyRL's classes: its loader asks for a length, an item, and a way to collate.
"""

from collections.abc import Sequence
from typing import Any

from rl.job_spec import Job
from rl.order import draw_batch, training_order, training_tasks
from verifier.release import Release
from verifier.task import Task

TASK = "task"
UPDATE = "update"


class PromptRows:
    """`updates` x `prompts_per_batch` rows, update by update."""

    def __init__(self, job: Job, release: Release) -> None:
        """Raises `TrainingError` when the release has fewer Train tasks than a batch needs."""
        order = training_order(job.seed, training_tasks(release))
        size, updates = job.contract.prompts_per_batch, job.contract.updates
        self.tasks: tuple[Task, ...] = tuple(
            task for update in range(updates) for task in draw_batch(order, job.cursor + update * size, size)
        )
        self.cursor = job.cursor + updates * size
        """Where the next cycle's draw begins."""
        self._size = size

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        task = self.tasks[index]
        return {
            "prompt": [{"role": "user", "content": task.prompt}],
            "env_class": "rinr",
            "env_extras": {TASK: task.id, UPDATE: index // self._size + 1},
            "uid": f"{index:06d}",
        }

    def collate_fn(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return list(items)
