"""SkyRL's generator: its prompts become our episodes, our rows become its output.

SkyRL calls from its own thread and loop; episodes run in the broker's. Every invariant of a step-wise batch
is checked before it is handed over (`rl.rows.check_batch`), for SkyRL would not notice: a missing attempt
shrinks its group, an interleaved one puts advantages on other tokens. Must not know SkyRL's trainer; imports
no SkyRL.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.attempt import Attempt
from broker.broker import Broker
from broker.harness import Harness
from rl.errors import TrainingError
from rl.job_spec import Job
from rl.rollout import Rollout, plan_attempts
from rl.rows import RowBatch
from rl.skyrl.model import InferenceClient, SkyrlModel
from rl.skyrl.prompts import TASK, UPDATE
from rl.skyrl.rollout import Watch, collect
from verifier.task import Task


class BrokerGenerator:
    """`GeneratorInterface` of SkyRL. Made in the broker's event loop, which must outlive every `generate`."""

    def __init__(
        self,
        job: Job,
        broker: Broker,
        model: SkyrlModel,
        watch: Watch,
        on_rollout: Callable[[int, Rollout], None],
    ) -> None:
        """`on_rollout` hears of each update's rollout, in the broker's loop, before SkyRL trains on it."""
        self._job, self._broker, self._model = job, broker, model
        self._watch, self._on_rollout = watch, on_rollout
        self._home = asyncio.get_running_loop()
        self._tasks = {task.id: task for task in broker.release.split("train")}
        self._client: InferenceClient | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def attach(self, client: InferenceClient) -> None:
        """The engine that the next rollouts ask."""
        self._client = client

    async def generate(self, input_batch: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """One `GeneratorOutput`, one row a model call. Raises `TrainingError` for an empty batch alone."""
        engine_loop = asyncio.get_running_loop()
        work = asyncio.run_coroutine_threadsafe(self._generate(input_batch, engine_loop), self._home)
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        """End what runs, and refuse what comes. Idempotent; call it in the broker's loop."""
        self._closed = True
        self._model.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _generate(
        self, input_batch: Mapping[str, Any], engine_loop: asyncio.AbstractEventLoop
    ) -> dict[str, Any]:
        if self._closed or self._client is None:
            raise TrainingError("the rollout was stopped")
        update, attempts = self._plan(input_batch)
        trajectories = list(input_batch["trajectory_ids"])
        names = [f"{item.instance_id}-{item.repetition_id}" for item in trajectories]
        current = asyncio.current_task()
        assert current is not None
        self._running.add(current)
        self._model.open(self._client, engine_loop)
        try:
            rollout = await collect(
                self._broker, self._model, attempts, names, self._job.contract, self._watch
            )
        finally:
            self._model.close()
            self._running.discard(current)
        self._on_rollout(update, rollout)
        return to_output(rollout.batch, attempts, trajectories)

    def _plan(self, input_batch: Mapping[str, Any]) -> tuple[int, list[Attempt]]:
        """The update's number and its attempts, in SkyRL's order. `TrainingError` for another order."""
        extras: Sequence[Mapping[str, Any]] = input_batch["env_extras"]
        update = int(extras[0][UPDATE])
        names = list(dict.fromkeys(str(extra[TASK]) for extra in extras))
        tasks: list[Task] = [self._tasks[name] for name in names]
        job = self._job
        attempts = plan_attempts(
            tasks,
            Harness(code=job.harness_code),
            job.contract,
            seed=job.seed,
            step=job.cycle * job.contract.updates + update,
        )
        asked = [
            (int(extra[UPDATE]), str(extra[TASK]), int(trajectory.repetition_id))
            for extra, trajectory in zip(extras, input_batch["trajectory_ids"], strict=True)
        ]
        if asked != [(update, attempt.task.id, attempt.repetition) for attempt in attempts]:
            raise TrainingError("SkyRL's batch is not every prompt with all its attempts, in our order")
        return update, attempts


def to_output(batch: RowBatch, attempts: Sequence[Attempt], trajectories: Sequence[Any]) -> dict[str, Any]:
    """Checked rows as SkyRL's `GeneratorOutput`, under SkyRL's own trajectory ids."""
    theirs = {
        (attempt.task.id, attempt.repetition): trajectory
        for attempt, trajectory in zip(attempts, trajectories, strict=True)
    }
    rows = batch.rows
    return {
        "prompt_token_ids": [list(row.prompt_ids) for row in rows],
        "response_ids": [list(row.completion_ids) for row in rows],
        "rewards": [list(row.rewards) for row in rows],
        "loss_masks": [list(row.loss_mask) for row in rows],
        "rollout_logprobs": [list(row.rollout_logprobs) for row in rows],
        "trajectory_ids": [theirs[row.trajectory] for row in rows],
        "is_last_step": [row.is_last for row in rows],
        # How a call ended is in the record; nothing of it may filter a row (RL-05).
        "stop_reasons": None,
        "rollout_metrics": {
            "rinr/zero_call_episodes": batch.zero_call_episodes,
            "rinr/lost_prompts": len(batch.lost_prompts),
            "rinr/silent_prompts": len(batch.silent_prompts),
        },
    }
