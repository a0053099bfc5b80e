"""SkyRL's policy worker, with one weight where the base has one.

SkyRL moves a model to the meta device before FSDP shards it. That gives a tied output layer a parameter of
its own: it is trained apart from the embedding, while the rollout engine goes on using the embedding for both
(seen with 0.3.0 and 0.4.0 on SmolLM2). Imported by name, once SkyRL is found; Ray's workers import it too.
Must not know jobs, data or episodes.
"""

# SkyRL and Ray are not installed where types are checked:
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import ray
from skyrl.backends.skyrl_train.distributed import fsdp_strategy
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase


@contextmanager
def tied_when_sharded() -> Generator[None]:
    """While this is open, SkyRL's FSDP ties the weights once more that the model says are tied.

    Before sharding, so that FSDP knows one parameter with two places; and after loading, which puts a tensor
    into each place, so that an optimiser made then is given one.
    """
    shard, load = fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict

    def tie_and_shard(model: Any, *arguments: Any, **named: Any) -> Any:
        _tie(model)
        return shard(model, *arguments, **named)

    def load_and_tie(model: Any, *arguments: Any, **named: Any) -> Any:
        loaded = load(model, *arguments, **named)
        _tie(model)
        return loaded

    fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict = tie_and_shard, load_and_tie
    try:
        yield
    finally:
        fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict = shard, load


def _tie(model: Any) -> None:
    if model.config.tie_word_embeddings:
        model.tie_weights()


class TiedPolicyWorkerBase(FSDPPolicyWorkerBase):
    """SkyRL's worker in everything else."""

    def init_model(self, *arguments: Any, **named: Any) -> Any:
        with tied_when_sharded():
            return super().init_model(*arguments, **named)


TiedPolicyWorker = ray.remote(num_gpus=1)(TiedPolicyWorkerBase)
