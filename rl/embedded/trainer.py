"""One optimiser step per batch, in place on the module that the engine samples from.

Departures from SkyRL, all exact or measured: the ratio is against the rollout log-probabilities (see
`rl.grpo`); rows with advantage 0 are not computed, for their gradient is exactly zero (they still count in
the token mean).
Must not know how episodes are made.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from rl.contract import RlContract
from rl.embedded.optimiser import Optimiser
from rl.embedded.packing import Pack, plan_packs
from rl.embedded.scoring import Packing, choose_packing, row_logprobs, tree_logprobs
from rl.errors import TrainingError
from rl.grpo import LossParts, policy_loss, row_advantages, zero_variance_groups
from rl.rows import Row, RowBatch


class UpdateMetrics(BaseModel):
    """What one update did. Token counts are of this batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: float
    gradient_norm: float
    """Before clipping."""
    clip_share: float
    """Share of the batch's valid tokens at which clipping is active."""
    logprob_gap_mean: float
    """|trainer - rollout| log-probability before the step, over the tokens that were computed."""
    logprob_gap_max: float
    valid_tokens: int
    trained_tokens: int
    """Valid tokens with an advantage other than 0."""
    computed_tokens: int
    """Tokens that went through the model: after packing."""
    plain_tokens: int
    """The same rows without packing."""
    micro_batches: int
    zero_variance_groups: int
    seconds: float


@dataclass(kw_only=True)
class Sums:
    """What micro-batches add up to."""

    plain: int = 0
    loss: float = 0.0
    clipped: int = 0
    gap_sum: float = 0.0
    gap_max: float = 0.0
    tokens: int = 0
    computed: int = 0
    micro_batches: int = 0

    def add(self, parts: LossParts, tokens: int, computed: int) -> None:
        self.loss += float(parts.loss.detach())
        self.clipped += parts.clipped_tokens
        self.gap_sum += parts.gap_sum
        self.gap_max = max(self.gap_max, parts.gap_max)
        self.tokens += tokens
        self.computed += computed
        self.micro_batches += 1


class Trainer:
    """AdamW on a causal language model. `step` blocks; call it while the engine is paused.

    Example: `Trainer(engine.model, RlContract()).step(batch).gradient_norm`
    """

    def __init__(
        self, model: nn.Module, contract: RlContract, *, packing: Packing = "auto", token_budget: int = 1_024
    ) -> None:
        if token_budget < 1:
            raise TrainingError(f"token_budget must be at least 1, got {token_budget}")
        self.model = model
        self.contract = contract
        self.token_budget = token_budget
        self.packing: Literal["tree", "rows"] = choose_packing(model, packing)
        # Evaluation mode: the policy that is trained is the one that sampled, without dropout.
        model.eval()
        model.requires_grad_(True)
        self.optimiser = Optimiser(model, contract)

    def step(self, batch: RowBatch, stop: threading.Event | None = None) -> UpdateMetrics:
        """One optimiser step. Raises `TrainingError`, with the weights as they were, if it is stopped."""
        started = time.perf_counter()
        try:
            sums = self.accumulate(batch, stop)
            norm = self.optimiser.clip()
            if not bool(torch.isfinite(norm)):
                raise TrainingError("the gradient is not finite: lower the learning rate; no step was taken")
            self.optimiser.step()
        finally:
            self.optimiser.end()
        return UpdateMetrics(
            loss=sums.loss,
            gradient_norm=float(norm),
            clip_share=sums.clipped / batch.trainable_tokens,
            logprob_gap_mean=sums.gap_sum / max(sums.tokens, 1),
            logprob_gap_max=sums.gap_max,
            valid_tokens=batch.trainable_tokens,
            trained_tokens=sums.tokens,
            computed_tokens=sums.computed,
            plain_tokens=sums.plain,
            micro_batches=sums.micro_batches,
            zero_variance_groups=zero_variance_groups(batch.rows),
            seconds=time.perf_counter() - started,
        )

    def accumulate(self, batch: RowBatch, stop: threading.Event | None = None) -> Sums:
        """The gradient of the whole batch, in `optimiser.gradients`."""
        advantages = row_advantages(batch.rows, self.contract.advantage_delta)
        active = [index for index, row in enumerate(batch.rows) if row.trainable and advantages[index] != 0.0]
        rows = [batch.rows[index] for index in active]
        weights = [advantages[index] for index in active]
        sums = Sums(plain=sum(_input_length(row) for row in rows))
        self.optimiser.begin()
        for size, members, pack in self._micro_batches(rows):
            if stop is not None and stop.is_set():
                raise TrainingError("the update was stopped before its step")
            chosen = [rows[member] for member in members]
            logprobs = (
                [row_logprobs(self.model, chosen[0])]
                if pack is None
                else tree_logprobs(self.model, pack, rows)
            )
            parts = self._loss(
                chosen, logprobs, [weights[member] for member in members], batch.trainable_tokens
            )
            parts.loss.backward()
            self.optimiser.collect()
            sums.add(parts, sum(row.trainable for row in chosen), size)
        return sums

    def _micro_batches(self, rows: Sequence[Row]) -> list[tuple[int, tuple[int, ...], Pack | None]]:
        """Tokens, rows and tree of each forward pass; without packing a pass is one row."""
        if self.packing == "tree":
            return [(pack.size, pack.members, pack) for pack in plan_packs(rows, self.token_budget)]
        return [(_input_length(row), (index,), None) for index, row in enumerate(rows)]

    def _loss(
        self, rows: Sequence[Row], logprobs: Sequence[Tensor], advantages: Sequence[float], batch_tokens: int
    ) -> LossParts:
        flat = torch.cat(list(logprobs))
        pairs = list(zip(rows, advantages, strict=True))

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=flat.dtype, device=flat.device)

        return policy_loss(
            flat,
            column([value for row in rows for value in row.rollout_logprobs]),
            column([advantage for row, advantage in pairs for _ in row.completion_ids]),
            column([float(value) for row in rows for value in row.loss_mask]),
            clip_low=self.contract.clip_low,
            clip_high=self.contract.clip_high,
            batch_tokens=batch_tokens,
        )


def _input_length(row: Row) -> int:
    return len(row.prompt_ids) + len(row.completion_ids) - 1
