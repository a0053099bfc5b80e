"""The forward passes of a batch: which rows go together, and how the model runs one.

Owns the token budget, the model's way of packing and the number of checkpointed layers. Must not know
advantages, losses or optimisers.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch
from torch import nn

from rl.embedded.checkpointing import Footprint, checkpointed, decoder_layers, free_bytes, measure
from rl.embedded.fitting import Packing, Way, fit
from rl.embedded.flat import FlatPack, plan_flat
from rl.embedded.head import workspace_bytes
from rl.embedded.kernels import BUCKET_SHARE
from rl.embedded.layout import flat_attention
from rl.embedded.packing import Pack, plan_packs
from rl.embedded.patches import patched
from rl.embedded.scoring import Scores, score_flat, score_row, score_row_plainly, score_tree
from rl.rows import Row, TrajectoryId

Checkpointing = int | Literal["auto"]
TokenBudget = int | Literal["auto"]

CPU_TOKENS: Final = 768
GPU_TOKENS: Final = 4_096
"""What `auto` is. A small pass leaves a GPU waiting for the host: of a 135 M model and 64 short episodes an
H200 updates 80,200 tokens/s with 4,096 and 28,400 with 768. Past that a tree pack's mask grows too fast."""
_PROBE_TOKENS: Final = 256
_MARGIN: Final = 0.92
"""Share of the free memory that activations may take."""


def tokens_of(chosen: TokenBudget, device: torch.device) -> int:
    """Tokens of one pass on this device."""
    if chosen == "auto":
        return GPU_TOKENS if device.type == "cuda" else CPU_TOKENS
    return chosen


@dataclass(frozen=True)
class Pass:
    """One micro-batch: which rows, and how they are packed (`None` is one row as it is)."""

    size: int
    """Tokens of rows that go through the model."""
    members: tuple[int, ...]
    pack: Pack | FlatPack | None

    @property
    def width(self) -> int:
        """Tokens that the model sees, padding included."""
        return self.size if self.pack is None else self.pack.size


class Passes:
    """Plans passes and runs them on one model."""

    def __init__(
        self, model: nn.Module, packing: Packing, token_budget: TokenBudget, checkpointing: Checkpointing
    ) -> None:
        self._model = model
        self._fit = fit(model, packing)
        self._device = next(model.parameters()).device
        self._layers = decoder_layers(model)
        self._footprint: Footprint | None = None
        self.token_budget = tokens_of(token_budget, self._device)
        self.checkpointing: Checkpointing = checkpointing

    @property
    def way(self) -> Way:
        return self._fit.way

    @property
    def layers(self) -> int:
        return len(self._layers)

    def plan(self, rows: Sequence[Row]) -> list[Pass]:
        """The micro-batches; the largest flat pack comes first, so that too little memory shows at once."""
        if self.way == "tree":
            return [Pass(pack.size, pack.members, pack) for pack in plan_packs(rows, self.token_budget)]
        if self.way == "flat":
            bucket = max(1, self.token_budget // BUCKET_SHARE) if self._device.type == "cuda" else 1
            packs = plan_flat(rows, self.token_budget, bucket)
            return [Pass(pack.used, pack.members, pack) for pack in packs]
        return [Pass(input_length(row), (index,), None) for index, row in enumerate(rows)]

    @contextmanager
    def prepared(self, checkpointed_layers: int) -> Generator[None]:
        """The model as a pass wants it, forward and backward: kernels, boundaries, checkpoints."""
        with patched([*self._fit.patches, *checkpointed(self._layers[:checkpointed_layers])]):
            if self.way == "flat":
                with flat_attention(self._model):
                    yield
            else:
                yield

    def scores(self, part: Pass, rows: Sequence[Row]) -> Scores:
        """Inside `prepared`: of the pass's members, in their order. `rows` are those of `plan`."""
        if isinstance(part.pack, Pack):
            return score_tree(self._model, part.pack, rows)
        if isinstance(part.pack, FlatPack):
            return score_flat(self._model, part.pack, rows)
        row = rows[part.members[0]]
        return score_row(self._model, row) if self._fit.plain_head else score_row_plainly(self._model, row)

    def layers_to_checkpoint(self, part: Pass) -> int:
        """As set; or on a GPU the fewest with which the pass fits into its free memory, on a CPU none."""
        if self.checkpointing != "auto":
            return min(self.checkpointing, self.layers)
        if self._device.type != "cuda" or not self._layers:
            return 0
        if self._footprint is None:
            self._footprint = self.footprint()
        largest = max(value.nbytes for value in self._model.parameters())
        # Beside activations: the head's logits, and the largest gradient three times (a tied embedding's two
        # halves and their sum).
        available = free_bytes(self._device) * _MARGIN - workspace_bytes(self._device.type) - 3 * largest
        return self._footprint.layers_to_checkpoint(part.width, int(available))

    def footprint(self) -> Footprint:
        """What a pass keeps for its backward pass, measured on one made-up row."""
        vocabulary = int(cast("Any", self._model).get_input_embeddings().weight.shape[0])
        row = _made_up_row(_PROBE_TOKENS, vocabulary)
        part = self.plan([row])[0]
        with self.prepared(0):
            return measure(self._model, part.width, lambda: self.scores(part, [row]).logprobs)

    def halve(self) -> None:
        """Half the token budget, and every layer checkpointed."""
        self.token_budget //= 2
        self.checkpointing = self.layers


def input_length(row: Row) -> int:
    """Tokens that a row puts through a model: its last token predicts nothing."""
    return len(row.prompt_ids) + len(row.completion_ids) - 1


def _made_up_row(tokens: int, vocabulary: int) -> Row:
    """A prompt of `tokens` ids and one completion token."""
    return Row(
        prompt_ids=tuple(index % vocabulary for index in range(tokens)),
        completion_ids=(0,),
        rollout_logprobs=(0.0,),
        loss_mask=(1,),
        rewards=(0.0,),
        trajectory=TrajectoryId("probe", 0),
        is_last=True,
    )
