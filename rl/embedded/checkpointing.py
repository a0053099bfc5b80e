"""Which layers forget their activations in the forward pass and compute them again in the backward pass.

A third of the arithmetic buys the memory of all activations but one tensor a layer. So no layer is
checkpointed that need not be: what a pass would keep is measured once on a few tokens, and as many of the
first layers are checkpointed as the device's free memory asks for. (The first ones, because theirs are kept
longest.) Must not know rows or losses.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from rl.embedded.patches import Forward, Patch


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The model's layers in order; empty for an architecture that does not list them as `layers`."""
    layers: object = getattr(cast("Any", model).base_model, "layers", None)
    return list(layers) if isinstance(layers, nn.ModuleList) else []


def checkpointed(layers: Sequence[nn.Module]) -> list[Patch]:
    """Forward methods that keep their input only. No random numbers are drawn in a layer (no dropout)."""

    def patch(layer: nn.Module) -> Patch:
        plain: Forward = layer.forward

        def forward(*args: Any, **options: Any) -> Any:
            return checkpoint(
                plain,
                *args,
                use_reentrant=False,
                preserve_rng_state=False,
                determinism_check="none",
                **options,
            )

        return layer, forward

    return [patch(layer) for layer in layers]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What the backward pass keeps of a forward pass, in bytes a token."""

    layers: int
    plain: float
    """With no layer checkpointed."""
    kept: float
    """With all of them: each layer's input."""

    def bytes_of(self, tokens: int, checkpointed_layers: int) -> int:
        """Of one pass. A checkpointed layer's own activations exist again while it is differentiated."""
        share = checkpointed_layers / max(self.layers, 1)
        working = self.plain / max(self.layers, 1)
        return math.ceil(tokens * (self.plain * (1 - share) + self.kept * share + working))

    def layers_to_checkpoint(self, tokens: int, available: int) -> int:
        """The fewest with which a pass of `tokens` fits into `available` bytes; all if none suffices."""
        for count in range(self.layers):
            if self.bytes_of(tokens, count) <= available:
                return count
        return self.layers


def measure(model: nn.Module, tokens: int, run: Callable[[], Tensor]) -> Footprint:
    """What `run`, a forward pass of `tokens` tokens with gradients, keeps beside the parameters."""
    parameters = {value.untyped_storage().data_ptr() for value in model.parameters()}
    kept: dict[int, int] = {}

    def count(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return value

    def give_back(value: Tensor) -> Tensor:
        return value

    with saved_tensors_hooks(count, give_back):
        # Held until the sum is taken: a freed block's address could be counted twice as one.
        output = run()
    total = sum(kept.values())
    del output
    layers = len(decoder_layers(model))
    like = next(model.parameters())
    width = int(cast("Any", model).get_input_embeddings().weight.shape[1])
    return Footprint(layers=layers, plain=total / tokens, kept=layers * width * like.element_size())


def free_bytes(device: torch.device) -> int:
    """Device memory that a pass can take: what is free, and what torch holds but does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
