"""Where sequences begin and end in a flat pack, and the two kinds of layers that must heed it.

`attend` is the attention of a flat pack: each sequence on its own. A recurrent mixer that knows no boundaries
is run once per sequence; what surrounds it (projections of other layers, MLPs) still sees the whole pack.
Must not know rows or losses.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import itertools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from rl.embedded.patches import Forward, Patch

IMPLEMENTATION: Final = "rinr_flat"
_UNSUPPORTED: Final = ("sliding_window", "softcap", "s_aux", "position_bias")


class Layout:
    """Boundaries of one pack. One object per pass, for kernels cache what they derive from `boundaries`."""

    def __init__(self, lengths: tuple[int, ...], device: torch.device) -> None:
        self.lengths = lengths
        edges = [0]
        for length in lengths:
            edges.append(edges[-1] + length)
        self.spans = [slice(start, end) for start, end in itertools.pairwise(edges)]
        self.boundaries_cpu = torch.tensor(edges, dtype=torch.int64)
        self.boundaries = self.boundaries_cpu.to(device)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    flat: Layout | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each sequence.

    Tensors are [1, heads, tokens, width], the result [1, tokens, heads, width].

    One call a sequence instead of one masked call: without a mask the fast kernels apply, and a pack of
    8,192 tokens holds few sequences.
    """
    if flat is None or attention_mask is not None or query.shape[0] != 1:
        raise NotImplementedError("flat attention takes one pack and no mask")
    for name in _UNSUPPORTED:
        if options.get(name) is not None:
            raise NotImplementedError(f"flat attention with {name}")
    parts = [
        functional.scaled_dot_product_attention(
            query[:, :, span],
            key[:, :, span],
            value[:, :, span],
            scale=scaling,
            is_causal=True,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for span in flat.spans
    ]
    return torch.cat([part.transpose(1, 2) for part in parts], dim=1), None


cast("Any", AttentionInterface).register(IMPLEMENTATION, attend)


@contextmanager
def flat_attention(model: nn.Module) -> Generator[None]:
    """Attention layers call `attend` inside the block, the recomputation of a backward pass included."""
    config = cast("Any", model).config
    before = config._attn_implementation
    config._attn_implementation = IMPLEMENTATION
    try:
        yield
    finally:
        config._attn_implementation = before


def recurrent_mixers(model: nn.Module) -> list[nn.Module] | None:
    """The recurrent layers' mixers; None if the model has a kind of layer that flat packs cannot serve."""
    causal = cast("Any", model)
    kinds: Sequence[str] = getattr(causal.config, "layer_types", None) or ()
    if set(kinds) - {"full_attention", "linear_attention"}:
        return None
    if "linear_attention" not in kinds:
        return []
    layers = list(getattr(causal.base_model, "layers", ()))
    found = [
        getattr(layer, "linear_attn", None)
        for layer, kind in zip(layers, kinds, strict=False)
        if kind == "linear_attention"
    ]
    return None if None in found or len(found) != kinds.count("linear_attention") else cast("Any", found)


def one_by_one(mixer: nn.Module) -> Patch:
    """The mixer's own forward method, run on each sequence of a pack apart."""
    plain: Forward = mixer.forward

    def forward(hidden_states: Tensor, *args: Any, flat: Layout | None = None, **options: Any) -> Any:
        if flat is None:
            return plain(hidden_states, *args, **options)
        return torch.cat([plain(hidden_states[:, span], *args, **options) for span in flat.spans], dim=1)

    return mixer, forward
