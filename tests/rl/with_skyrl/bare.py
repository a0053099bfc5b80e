"""SkyRL's trainer without workers or data, for its own conversion and advantages on batches of ours."""

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import rl_jobs
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.trainer import RayPPOTrainer

from broker.attempt import Attempt
from broker.harness import Harness
from rl.contract import RlContract
from rl.rows import RowBatch
from rl.skyrl.experiment import build_config
from rl.skyrl.generator import to_output
from rl.skyrl.mapping import overrides
from rl.skyrl.settings import SkyrlSettings
from tests.fixtures.episodes import a_task


@functools.cache
def config(prompts: int, attempts: int) -> Any:
    """SkyRL's configuration for batches of this size."""
    from pathlib import Path

    contract = RlContract(updates=1, prompts_per_batch=prompts, attempts=attempts)
    job = rl_jobs.job(Path("/nowhere"), contract=contract, skyrl=SkyrlSettings())
    return build_config(overrides(job))


def bare_trainer(prompts: int, attempts: int) -> RayPPOTrainer:
    trainer = RayPPOTrainer.__new__(RayPPOTrainer)
    trainer.cfg = config(prompts, attempts)
    trainer.all_metrics = {}
    trainer.tokenizer = SimpleNamespace(pad_token_id=0)
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    return trainer


def as_output(batch: RowBatch, instances: Sequence[str]) -> dict[str, Any]:
    """The batch as our generator hands it over."""
    task = a_task()
    attempts = [
        Attempt(
            task=task.model_copy(update={"id": name}),
            harness=Harness(code=""),
            mode="rl",
            temperature=1.0,
            seed=0,
            repetition=number,
        )
        for name in instances
        for number in range(batch.attempts)
    ]
    ids = [TrajectoryID(f"uid-{attempt.task.id}", attempt.repetition) for attempt in attempts]
    return to_output(batch, attempts, ids)


def training_input(batch: RowBatch, instances: Sequence[str]) -> tuple[RayPPOTrainer, Any]:
    """SkyRL's own tensors of a batch, with its advantages."""
    trainer = bare_trainer(len(instances), batch.attempts)
    output = as_output(batch, instances)
    uids = [item.instance_id for item in output["trajectory_ids"]]
    data = trainer.convert_to_training_input(output, uids)
    data["values"] = None
    return trainer, trainer.compute_advantages_and_returns(data)
