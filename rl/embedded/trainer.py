"""One optimiser step per batch, in place on the module that the engine samples from.

Departures from SkyRL, all exact or measured: the ratio is against the rollout log-probabilities (see
`rl.grpo`); rows with advantage 0 are not computed, for their gradient is exactly zero (they still count in
the token mean); a batch of which no row has an advantage takes no step at all, so that neither moments nor
weight decay move the weights (docs/training.md).
Must not know how episodes are made.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import gc
import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl.contract import RlContract
from rl.embedded.fitting import Packing, Way
from rl.embedded.metrics import Skipped, Sums, UpdateMetrics, finite
from rl.embedded.optimiser import Optimiser
from rl.embedded.passes import Checkpointing, Passes, TokenBudget, input_length
from rl.embedded.scoring import Scores
from rl.errors import TrainingError
from rl.grpo import LossParts, policy_loss, row_advantages, zero_variance_groups
from rl.patience import not_finite, refuse_third
from rl.rows import Row, RowBatch


class Trainer:
    """AdamW on a causal language model. `step` blocks; call it while the engine is paused.

    Example: `Trainer(engine.model, RlContract()).step(batch).gradient_norm`
    """

    def __init__(
        self,
        model: nn.Module,
        contract: RlContract,
        *,
        packing: Packing = "auto",
        token_budget: TokenBudget = "auto",
        checkpointing: Checkpointing = "auto",
    ) -> None:
        """`token_budget`: tokens of a micro-batch, `auto` by the device. `checkpointing`: how many layers are
        computed again in the backward pass; `auto` is none on a CPU, and on a GPU as many as its free memory
        asks for."""
        if token_budget != "auto" and token_budget < 1:
            raise TrainingError(f"token_budget must be at least 1, got {token_budget}")
        self.model = model
        self.contract = contract
        # Evaluation mode: the policy that is trained is the one that sampled, without dropout.
        model.eval()
        model.requires_grad_(True)
        self.passes = Passes(model, packing, token_budget, checkpointing)
        self.packing: Way = self.passes.way
        self.optimiser = Optimiser(model, contract)
        self.not_finite: list[str] = []
        """The numbers of each update that was skipped because they were not finite."""
        self._device = next(model.parameters()).device
        self._halved = False

    def step(self, batch: RowBatch, stop: threading.Event | None = None) -> UpdateMetrics:
        """One optimiser step, or none: see `UpdateMetrics.skipped`.

        Raises `TrainingError`, with the weights as they were: an empty batch, a stop, memory that ran out
        twice, or the third update whose loss or gradient is not finite.
        """
        started = time.perf_counter()
        _require_tokens(batch)
        halved = self._halved
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        try:
            sums = self.accumulate(batch, stop)
            norm = float(self.optimiser.clip())
            numbers = sums.read()
            skipped = _why_skip(sums, numbers["loss"], norm)
            if skipped is None:
                self.optimiser.step()
        finally:
            self.optimiser.end()
        if skipped == "not_finite":
            self.not_finite.append(not_finite(numbers["loss"], norm))
            refuse_third(self.not_finite)
        return UpdateMetrics(
            skipped=skipped,
            loss=finite(numbers["loss"]),
            gradient_norm=finite(norm),
            clip_share=numbers["clipped"] / batch.trainable_tokens,
            entropy=finite(numbers["entropy"]),
            logprob_gap_mean=finite(numbers["logprob_gap_mean"]),
            logprob_gap_max=finite(numbers["logprob_gap_max"]),
            valid_tokens=batch.trainable_tokens,
            trained_tokens=sums.tokens,
            computed_tokens=sums.computed,
            plain_tokens=sums.plain,
            micro_batches=sums.micro_batches,
            token_budget=self.passes.token_budget,
            checkpointed_layers=sums.checkpointed_layers,
            halvings=int(self._halved and not halved),
            zero_variance_groups=zero_variance_groups(batch.rows),
            seconds=time.perf_counter() - started,
            device_peak_bytes=_peak(self._device),
        )

    def accumulate(self, batch: RowBatch, stop: threading.Event | None = None) -> Sums:
        """The gradient of the whole batch, in `optimiser.gradients`.

        When memory runs out the batch is begun again, once in a trainer's life: with half the token budget
        and every layer checkpointed. Raises `TrainingError` with the numbers the second time.
        """
        advantages = row_advantages(batch.rows, self.contract.advantage_delta)
        active = [index for index, row in enumerate(batch.rows) if row.trainable and advantages[index] != 0.0]
        rows = [batch.rows[index] for index in active]
        weights = [advantages[index] for index in active]
        while True:
            try:
                return self._accumulate(rows, weights, batch.trainable_tokens, stop)
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                if self._halved or self.passes.token_budget < 2:
                    raise TrainingError(self._out_of_memory(rows)) from error
            # Outside the handler: the exception holds the frames, and they hold the activations.
            self.optimiser.end()
            self._halved = True
            self.passes.halve()
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    @torch.no_grad()
    def score(self, batch: RowBatch) -> tuple[list[Tensor], float]:
        """Log-probabilities [completion length] of every row with a valid token, by index, and the seconds.

        What an update computes anyway for the rows that it trains; this is all of them, without gradients.
        Rows without a valid token get an empty tensor.
        """
        started = time.perf_counter()
        active = [index for index, row in enumerate(batch.rows) if row.trainable]
        rows = [batch.rows[index] for index in active]
        found = [torch.empty(0) for _ in batch.rows]
        for part in self.passes.plan(rows):
            with self.passes.prepared(0):
                logprobs = self.passes.scores(part, rows).logprobs
            lengths = [len(rows[member].completion_ids) for member in part.members]
            for member, values in zip(part.members, logprobs.split(lengths), strict=True):
                found[active[member]] = values.cpu()
        return found, time.perf_counter() - started

    def _accumulate(
        self, rows: Sequence[Row], weights: Sequence[float], batch_tokens: int, stop: threading.Event | None
    ) -> Sums:
        sums = Sums(self._device)
        sums.plain = sum(input_length(row) for row in rows)
        if not rows:
            return sums
        self.optimiser.begin()
        for part in self.passes.plan(rows):
            if stop is not None and stop.is_set():
                raise TrainingError("the update was stopped before its step")
            again = self.passes.layers_to_checkpoint(part)
            chosen = [rows[member] for member in part.members]
            with self.passes.prepared(again):
                scores = self.passes.scores(part, rows)
                valid = _column(scores, [float(value) for row in chosen for value in row.loss_mask])
                parts = self._loss(
                    chosen, scores, valid, [weights[member] for member in part.members], batch_tokens
                )
                # Inside the block: checkpointed layers run again here, and must find the same methods.
                parts.loss.backward()
            entropy = torch.where(valid > 0, scores.entropies, torch.zeros_like(scores.entropies)).sum()
            sums.add(parts, entropy, tokens=sum(row.trainable for row in chosen), computed=part.size)
            sums.checkpointed_layers = max(sums.checkpointed_layers, again)
        return sums

    def _loss(
        self,
        rows: Sequence[Row],
        scores: Scores,
        valid: Tensor,
        advantages: Sequence[float],
        batch_tokens: int,
    ) -> LossParts:
        pairs = list(zip(rows, advantages, strict=True))
        return policy_loss(
            scores.logprobs,
            _column(scores, [value for row in rows for value in row.rollout_logprobs]),
            _column(scores, [advantage for row, advantage in pairs for _ in row.completion_ids]),
            valid,
            clip_low=self.contract.clip_low,
            clip_high=self.contract.clip_high,
            batch_tokens=batch_tokens,
        )

    def _out_of_memory(self, rows: Sequence[Row]) -> str:
        numbers = (
            f"token budget {self.passes.token_budget}, longest row {max(map(input_length, rows))} tokens"
        )
        numbers += f", {self.passes.checkpointing} of {self.passes.layers} layers checkpointed"
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            numbers += f", {_peak(self._device) / 2**30:.1f} of {total / 2**30:.1f} GiB held by this process"
        return f"out of memory, also with half the micro-batch ({numbers}): lower token_budget or the context"


def _require_tokens(batch: RowBatch) -> None:
    if batch.trainable_tokens < 1:
        raise TrainingError(
            f"RL-07: no trainable token in {len(batch.rows)} rows: let the program call the model"
        )


def _why_skip(sums: Sums, loss: float, norm: float) -> Skipped | None:
    if not sums.micro_batches:
        return "no_contrast"
    return None if finite(loss) is not None and finite(norm) is not None else "not_finite"


def _is_out_of_memory(error: BaseException) -> bool:
    # A CPU's allocator has no exception of its own.
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _column(like: Scores, values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=like.logprobs.dtype, device=like.logprobs.device)
