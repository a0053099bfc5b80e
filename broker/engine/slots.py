"""The keys and values of running sequences, and attention over them.

`SlotStore` owns one buffer [layers, 2, slots, heads, length, head_dim]; slots 0 .. n-1 are the running ones.
`SlotAttention` is one forward pass over it. `attend` is the function that transformers calls in every layer
of a model loaded with `attn_implementation=IMPLEMENTATION`; without a `SlotAttention` it is plain SDPA, so
the trainer uses the same module unchanged. Must not know sampling, requests or the prefix cache.
"""

from typing import Any, Final, Protocol, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.integrations import sdpa_attention

from broker.engine.plan import StepPlan
from broker.engine.prefill import SpanGroup, group_spans

IMPLEMENTATION: Final = "rinr_slots"
_LENGTH_STEP: Final = 128
_plain: Any = cast("Any", sdpa_attention).sdpa_attention_forward
_UNSUPPORTED: Final = ("sliding_window", "softcap", "s_aux", "position_bias")


def power_of_two(number: int, least: int = 256) -> int:
    """The next one at or above `number`, and at least `least`."""
    return max(least, 1 << (number - 1).bit_length())


class SlotStore:
    """Keys and values of up to `slots` sequences. Grows with the longest; `release` gives the memory back."""

    def __init__(self, layers: int, slots: int, heads: int, head_dim: int, *, like: torch.Tensor) -> None:
        self._shape = (layers, 2, slots, heads)
        self._head_dim = head_dim
        self._dtype = like.dtype
        self._device = like.device
        self.release()

    def release(self) -> None:
        self.values = self._empty(0)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    @torch.inference_mode()  # as the steps that filled it
    def forget(self) -> None:
        """Zeros again, at the same address: what was captured over the buffer stays valid."""
        self.values.zero_()

    def _empty(self, length: int) -> torch.Tensor:
        # Zeros: attention multiplies what a shorter sequence leaves unused by 0, and 0 * NaN is NaN.
        return torch.zeros((*self._shape, length, self._head_dim), dtype=self._dtype, device=self._device)

    def reserve(self, length: int, running: int, *, room: int = 0) -> None:
        """Make room for `length` positions, keeping the first `running` slots.

        `room`: positions to have when it has to grow, where it should grow rarely, because what was captured
        over the buffer is lost with it.
        """
        have = self.values.shape[4]
        if length <= have:
            return
        grown = self._empty(-(-max(length, room) // _LENGTH_STEP) * _LENGTH_STEP)
        grown[:, :, :running, :, :have] = self.values[:, :, :running]
        self.values = grown

    def load(self, slot: int, prefix: torch.Tensor) -> None:
        """Fill positions [0, n) of a slot from [layers, 2, heads, n, head_dim]."""
        self.values[:, :, slot, :, : prefix.shape[3]] = prefix

    def read(self, slot: int, length: int) -> torch.Tensor:
        """View of the first `length` positions of a slot: [layers, 2, heads, length, head_dim]."""
        return self.values[:, :, slot, :, :length]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot over another."""
        self.values[:, :, target, :, :length] = self.values[:, :, source, :, :length]


class LayerAttention(Protocol):
    """What every layer of a pass calls instead of its own attention."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Store the new keys and values, then attend.

        `query` [1, query heads, tokens, head_dim], `key` and `value` [1, heads, tokens, head_dim];
        returns [1, tokens, query heads, head_dim].
        """
        ...


class SlotAttention:
    """Attention of one planned pass. Positions are absolute; a slot holds one sequence from position 0."""

    def __init__(self, store: SlotStore, plan: StepPlan, *, shared: int, batched: bool | None = None) -> None:
        """`shared`: leading positions that all running slots have in common, read once from slot 0.

        `batched`: new prompts of about one length are one product, padded; None does that on a GPU, where
        the number of kernels is the cost, and never on a CPU, where it is the arithmetic.
        """
        device = store.values.device
        self._values = store.values
        self._running = plan.running
        self._shared = shared
        self._slots = torch.tensor(plan.write_slots, device=device)
        self._positions = torch.tensor(plan.write_positions, device=device)
        self._sources = torch.tensor(plan.write_sources, device=device)
        batched = device.type != "cpu" if batched is None else batched
        groups = group_spans(plan.spans) if batched else [(span,) for span in plan.spans]
        self._prompts = [SpanGroup(group, device) for group in groups]
        positions = torch.tensor(plan.positions[: plan.running], device=device)
        self._length = 1 + max(plan.positions[: plan.running], default=-1)
        columns = torch.arange(shared, self._length, device=device)
        hidden = columns[None, :] > positions[:, None]
        self._bias = torch.zeros(hidden.shape, dtype=store.values.dtype, device=device)
        self._bias.masked_fill_(hidden, float("-inf"))

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        keys, values = self._values[layer, 0], self._values[layer, 1]
        keys[self._slots, :, self._positions] = key[0].transpose(0, 1)[self._sources]
        values[self._slots, :, self._positions] = value[0].transpose(0, 1)[self._sources]
        heads = key.shape[1]
        # Query heads that share a key head become rows of one product: [tokens, heads, group, head_dim].
        _, query_heads, tokens, head_dim = query.shape
        grouped = query[0].transpose(0, 1).reshape(tokens, heads, query_heads // heads, head_dim)
        output = torch.empty_like(grouped)
        if self._running:
            output[: self._running] = self._decode(grouped[: self._running] * scaling, keys, values)
        for group in self._prompts:
            group.attend(output, grouped, keys, values, scaling)
        return output.flatten(1, 2)[None]

    def _decode(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """One token of each running slot. `query` is [running, heads, group, head_dim], already scaled."""
        running, shared = self._running, self._shared
        own = slice(shared, self._length)
        scores = query @ keys[:running, :, own].transpose(2, 3) + self._bias[:, None, None, :]
        if not shared:
            return torch.softmax(scores, dim=-1) @ values[:running, :, own]
        # The common prefix is one matrix for all slots, so it is read once instead of once a slot.
        heads, group = query.shape[1:3]
        merged = query.transpose(0, 1).reshape(heads, running * group, -1)
        common = (merged @ keys[0, :, :shared].transpose(1, 2)).view(heads, running, group, shared)
        weights = torch.softmax(torch.cat([common.transpose(0, 1), scores], dim=-1), dim=-1)
        common = weights[..., :shared].transpose(0, 1).reshape(heads, running * group, shared)
        output = (common @ values[0, :, :shared]).view(heads, running, group, -1).transpose(0, 1)
        return output + weights[..., shared:] @ values[:running, :, own]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    slots: LayerAttention | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, in the shape of transformers' attention interface."""
    if slots is None:
        return _plain(module, query, key, value, attention_mask, scaling=scaling, **options)[0], None
    for name in _UNSUPPORTED:
        if options.get(name) is not None:
            raise NotImplementedError(f"attention with {name}")
    layer: Any = module.layer_idx
    return slots(layer, query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling), None


cast("Any", AttentionInterface).register(IMPLEMENTATION, attend)
cast("Any", AttentionMaskInterface).register(IMPLEMENTATION, cast("Any", masking_utils).sdpa_mask)
