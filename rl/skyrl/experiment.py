"""SkyRL's experiment with our data, generator and log in it. The one module that subclasses SkyRL.

Imported by name, once `rl.skyrl.installed` has found SkyRL. Must not know jobs on disk or results.
"""

# SkyRL and Ray are not installed where types are checked:
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false

import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
import torch
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray
from torchdata.stateful_dataloader import StatefulDataLoader

from rl.skyrl.generator import BrokerGenerator
from rl.skyrl.installed import require_gpus, require_workers
from rl.skyrl.prompts import PromptRows
from rl.skyrl.settings import Option, SkyrlSettings
from rl.skyrl.updates import UpdateLog

Hear = Callable[[Any], Awaitable[None]]

_CLIENT_LOGGER: Final = "skyrl.backends.skyrl_train.inference_servers.remote_inference_client"
_LOCAL_CLUSTER: Final = Path("/tmp/ray/ray_current_cluster")
"""Written by `ray start` on this machine; such a Ray is joined without RAY_ADDRESS."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is ours in the experiment."""

    settings: SkyrlSettings
    prompts: PromptRows
    generator: BrokerGenerator
    log: UpdateLog
    hear: Hear
    """Called with the inference client once it serves the final weights."""
    on_stage: Callable[[str, float], None]
    """Hears the name and the seconds of each part of the start."""


def build_config(overrides: Mapping[str, Option]) -> Any:
    """SkyRL's own configuration, checked by SkyRL. Raises what SkyRL raises for a setting that it refuses."""
    config = SkyRLTrainConfig.from_cli_overrides(dict(overrides))
    validate_cfg(config)
    return config


class OrderedTrainer(RayPPOTrainer):
    """SkyRL's trainer, in our order of prompts, and with a last look at what the engine serves."""

    hear: Hear

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        # Upstream's hook. Its own loader shuffles; the order of Train tasks is ours (SCHED-05).
        self.train_dataloader = StatefulDataLoader(
            self.train_dataset,
            batch_size=self.cfg.trainer.train_batch_size,
            shuffle=False,
            drop_last=True,
            collate_fn=self.train_dataset.collate_fn,
            num_workers=0,
        )
        self.total_training_steps = len(self.train_dataloader)

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:
        # Imported here: it needs what only a machine that trains has. Names are upstream's.
        from rl.skyrl.worker import TiedPolicyWorker

        super().build_models(TiedPolicyWorker, CriticWorker, RefWorker)

    async def train(self) -> None:
        await super().train()
        # A colocated engine sleeps now, without weights: it gets the final ones once more.
        await self.dispatch.save_weights_for_sampler()
        await self.hear(self.inference_engine_client)


class Experiment(BasePPOExp):
    """On Ray, FSDP and vLLM. `open`, then `run`, then `close` in any case, all in one thread."""

    def __init__(self, config: Any, parts: Parts) -> None:
        self.parts = parts
        super().__init__(config)

    @classmethod
    def open(cls, config: Any, parts: Parts) -> "Experiment":
        """Join the Ray of RAY_ADDRESS, or start one here. Raises `TrainingError` for too few GPUs."""
        started = time.perf_counter()
        require_workers()
        # Each call says that a router without sessions has none to end.
        logging.getLogger(_CLIENT_LOGGER).setLevel(logging.ERROR)
        if not os.environ.get("RAY_ADDRESS") and not _LOCAL_CLUSTER.exists():
            require_gpus(parts.settings, torch.cuda.device_count())
        try:
            initialize_ray(config)
            require_gpus(parts.settings, ray.cluster_resources().get("GPU", 0))
        except BaseException:
            ray.shutdown()
            raise
        parts.on_stage("ray", time.perf_counter() - started)
        try:
            return cls(config, parts)
        except BaseException:
            # SkyRL's own constructor waits for GPUs.
            ray.shutdown()
            raise

    def get_train_dataset(self) -> PromptRows:
        return self.parts.prompts

    def get_eval_dataset(self) -> None:
        return None

    def get_tracker(self) -> UpdateLog:
        return self.parts.log

    def get_trajectory_logger(self) -> None:
        return None

    def get_inference_client(self) -> Any:
        started = time.perf_counter()
        client = super().get_inference_client()
        self.parts.on_stage("engines", time.perf_counter() - started)
        return client

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> BrokerGenerator:
        self.parts.generator.attach(inference_engine_client)
        return self.parts.generator

    def get_trainer(self, **parts: Any) -> OrderedTrainer:
        trainer = OrderedTrainer(**parts)
        trainer.hear = self.parts.hear
        return trainer

    def _setup_trainer(self) -> Any:
        started = time.perf_counter()
        trainer = super()._setup_trainer()
        self.parts.on_stage("engines and policy", time.perf_counter() - started)
        return trainer

    def close(self) -> None:
        """Give GPUs back: the router, then everything that Ray runs for this process."""
        if (router := getattr(self, "_inference_router", None)) is not None:
            router.shutdown()
        ray.shutdown()
