"""The RL contract: the numbers that define one outer stage. Hashed into the handoff request (HAND-01).

Must not know how a trainer works: the embedded and the SkyRL trainer read the same contract.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from catalog.digest import digest_json
from rl.errors import TokenIdsNeeded

RewardKind = Literal["verdict", "rubric"]


def _is_off(value: object) -> bool:
    return value == 0


def _is_verdict(value: object) -> bool:
    # Written only where it says something: contracts without rubric rewards keep their digest.
    return value == "verdict"


_ENFORCED: dict[str, tuple[str, Any]] = {
    "temperature": ("RL-02", 1.0),
    "top_p": ("RL-02", 1.0),
    "thinking": ("RL-02", False),
    "replies": ("RL-02", 0),
    "epochs": ("RL-10", 1),
    "kl": ("RL-10", 0.0),
}


def refuse_chat_model(inference: str) -> None:
    """Raise `TokenIdsNeeded` before anything starts when a run that trains has a chat endpoint (HOST-11)."""
    if inference == "chat":
        raise TokenIdsNeeded(
            "model.inference=chat gives no token ids, so that it cannot be trained: RL needs a vLLM server "
            "(model=endpoint) or the embedded engine (model=smollm2); rinr evaluate and mode=harness take "
            "a chat model"
        )


class RlContract(BaseModel):
    """One outer stage. The defaults are the paper's recipe (RL-01, RL-02, RL-10)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    updates: int = Field(default=30, ge=1)
    """Optimiser steps, one a batch."""
    prompts_per_batch: int = Field(default=8, ge=1)
    """Distinct Train tasks of one batch."""
    attempts: int = Field(default=8, ge=1)
    """Fresh episodes of each task; changes the group size, never the concurrency (RL-01)."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Constant, no warm-up."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled. 0.01 with betas (0.9, 0.999) is SkyRL's default AdamW (`OptimizerConfig`)."""
    advantage_delta: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation of a group (RL-08)."""
    temperature: float = 1.0
    top_p: float = 1.0
    thinking: bool = False
    replies: int = 0
    """Researcher replies in an RL episode."""
    epochs: int = 1
    kl: float = 0.0
    """Weight of any KL term, in the loss or in the reward."""

    reward: RewardKind = Field(default="verdict", exclude_if=_is_verdict)
    """`verdict`: 1 for a right answer, else 0. `rubric`: R in [0, 1] where a task has a rubric (RL-04)."""

    evaluate_every: int = Field(default=0, ge=0, exclude_if=_is_off)
    """Full Val after so many updates, before the first and after the last too; 0 is off, and the only value
    in co-evolution (RL-11). It measures, and chooses nothing."""

    @model_validator(mode="after")
    def _refuse_other_objectives(self) -> "RlContract":
        # Other values would train another objective: a top-p below 1, for one, renormalises the engine's
        # log-probabilities and biases the ratio. So these are refused, not defaulted.
        for name, (requirement, value) in _ENFORCED.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{requirement} fixes {name} at {value}, got {getattr(self, name)}: remove the setting"
                )
        return self

    @property
    def episodes_per_batch(self) -> int:
        return self.prompts_per_batch * self.attempts

    @property
    def digest(self) -> str:
        return digest_json(self.model_dump(mode="json"))
