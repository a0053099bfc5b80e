"""What a run says about SkyRL: how many GPUs, how they are shared, and any further setting by SkyRL's own
name.

Part of the run's configuration and of the job file. Must not know SkyRL's configuration classes.
"""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

Option = str | int | float | bool | None

DEFAULT_EXPERIMENT: Final = "rl.skyrl.experiment:Experiment"


class SkyrlSettings(BaseModel):
    """Where SkyRL trains. The defaults are one GPU that trainer and inference engine take turns on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=1, ge=1)
    """GPUs that the policy is sharded over, on each node."""
    colocated: bool = True
    """Engines and policy take turns on the same GPUs. Otherwise the engines have GPUs of their own."""
    engines: int = Field(default=0, ge=0)
    """vLLM engines; 0 is as many as there are GPUs for (colocated), else one for each policy GPU."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs of one engine."""
    memory_share: float = Field(default=0.6, gt=0, lt=1)
    """Share of a GPU's memory that an engine may take; lower it if a colocated start runs out of memory."""
    micro_batch: int = Field(default=4, ge=1)
    """Rows of one forward pass on one GPU, at most; SkyRL gets the largest number below that divides a GPU's
    episodes. Changes speed and memory, never the loss."""
    options: dict[str, Option] = Field(default_factory=dict[str, Option])
    """Further settings of SkyRL, e.g. {"trainer.policy.fsdp_config.cpu_offload": true}. Those that make the
    objective or the bookkeeping are the RL contract's and are refused."""
    experiment: str = DEFAULT_EXPERIMENT
    """`module:class` of the experiment, for who extends SkyRL's (another strategy, say)."""

    @model_validator(mode="after")
    def _fits(self) -> "SkyrlSettings":
        if self.colocated and self.policy_gpus % self.tensor_parallel:
            raise ValueError(
                f"skyrl.tensor_parallel={self.tensor_parallel} does not divide the {self.policy_gpus} GPUs "
                "of skyrl.nodes x skyrl.gpus_per_node"
            )
        if self.colocated and self.engine_count * self.tensor_parallel != self.policy_gpus:
            raise ValueError(
                f"skyrl.colocated=true needs engines on all {self.policy_gpus} GPUs: leave skyrl.engines=0, "
                f"or give {self.policy_gpus // self.tensor_parallel}"
            )
        return self

    @property
    def policy_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def engine_count(self) -> int:
        if self.engines:
            return self.engines
        return max(1, self.policy_gpus // self.tensor_parallel)

    def micro_batch_of(self, episodes: int) -> int:
        """Rows of a pass when a batch has so many episodes."""
        share = max(1, episodes // self.policy_gpus)
        return next(size for size in range(min(self.micro_batch, share), 0, -1) if share % size == 0)

    @property
    def gpus(self) -> int:
        """GPUs that Ray must have."""
        return self.policy_gpus + (0 if self.colocated else self.engine_count * self.tensor_parallel)
