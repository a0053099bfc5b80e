"""What an update did, and the sums that its micro-batches add up to.

Sums stay on the device until the end: reading one would make the GPU wait for the CPU in every pass. Must not
know models or packs.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false

import math
from typing import Literal, cast

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from rl.grpo import LossParts

Skipped = Literal["no_contrast", "not_finite"]


class UpdateMetrics(BaseModel):
    """What one update did. Token counts are of this batch; a number that is not finite is None."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    skipped: Skipped | None = None
    """Why no step was taken: every group's rewards were equal, or loss or gradient were not finite."""
    loss: float | None
    gradient_norm: float | None
    """Before clipping."""
    clip_share: float
    """Share of the batch's valid tokens at which clipping is active."""
    entropy: float | None
    """Mean of the policy's entropy in nats before the step, over the tokens that were computed."""
    logprob_gap_mean: float | None
    """|trainer - rollout| log-probability before the step, over the tokens that were computed."""
    logprob_gap_max: float | None
    valid_tokens: int
    trained_tokens: int
    """Valid tokens with an advantage other than 0."""
    computed_tokens: int
    """Tokens that went through the model: after packing."""
    plain_tokens: int
    """The same rows without packing."""
    micro_batches: int
    token_budget: int
    """Of one micro-batch."""
    checkpointed_layers: int
    """The most in any micro-batch."""
    halvings: int
    """1 if memory ran out in this update and it was begun again with half the budget."""
    zero_variance_groups: int
    seconds: float
    device_peak_bytes: int
    """The most memory that torch held on a GPU in this update; 0 on a CPU."""


class Sums:
    """What micro-batches add up to."""

    def __init__(self, device: torch.device) -> None:
        self._totals = torch.zeros(4, dtype=torch.float64, device=device)
        self._gap_max = torch.zeros((), dtype=torch.float64, device=device)
        self.plain = 0
        self.tokens = 0
        self.computed = 0
        self.micro_batches = 0
        self.checkpointed_layers = 0

    def add(self, parts: LossParts, entropy_sum: Tensor, *, tokens: int, computed: int) -> None:
        new = torch.stack([parts.loss.detach(), parts.clipped_tokens, parts.gap_sum, entropy_sum])
        self._totals += new.double()
        self._gap_max = torch.maximum(self._gap_max, parts.gap_max.double())
        self.tokens += tokens
        self.computed += computed
        self.micro_batches += 1

    def read(self) -> dict[str, float]:
        """Loss, clipped tokens, mean and largest gap, mean entropy: one transfer from the device."""
        values = cast("list[float]", torch.cat([self._totals, self._gap_max[None]]).tolist())
        loss, clipped, gap, entropy, gap_max = values
        count = max(self.tokens, 1)
        return {
            "loss": loss,
            "clipped": clipped,
            "logprob_gap_mean": gap / count,
            "logprob_gap_max": gap_max,
            "entropy": entropy / count,
        }


def finite(value: float) -> float | None:
    """The number, or None where JSON has no word for it."""
    return value if math.isfinite(value) else None
