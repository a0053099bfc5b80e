"""Decode steps of one shape, so that a GPU can run them from a captured graph.

A 135 M model is some 1,400 kernels a step; launched one by one from Python they take many times what the GPU
needs for them. Here every input lies at a fixed address, rows and positions are rounded up, and the drawn
tokens stay on the device: several steps run without a word from the host. What a padded row computes goes to
a slot that nobody uses. The weights are read where they are, so a trainer that steps them in place changes
what the graph computes. On a CPU the same steps run without a graph. Must not know requests or prompts.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from broker.engine.norms import Norm, find_norms, replaced
from broker.engine.sampling import draw_on_device
from broker.engine.slots import SlotStore, power_of_two

_LOG = logging.getLogger(__name__)
BURST: Final = 4
"""Most steps without the host. A sequence that ends inside one wastes its slot for the rest of it."""
_PACE: Final = 16
"""Above this many rows, graphs are captured for every so many; below, for every power of two."""


@dataclass(frozen=True)
class Burst:
    """What the next steps start from; all sequences have the same length."""

    tokens: Sequence[int]
    """The last token of each running slot, in order of slots."""
    positions: Sequence[int]
    temperatures: Sequence[float]
    uniforms: Sequence[Sequence[float]]
    """By step, then by slot."""


class StaticAttention:
    """One token of each of the first slots over all positions up to its own; the shapes never change."""

    def __init__(self, values: Tensor, positions: Tensor, slots: Tensor, length: int) -> None:
        self._values, self._positions, self._slots, self._length = values, positions, slots, length
        seen = torch.arange(length, device=values.device)[None, :] <= positions[:, None]
        hidden = torch.zeros(seen.shape, dtype=values.dtype, device=values.device)
        self._bias = hidden.masked_fill_(~seen, float("-inf"))[:, None, None, :]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See `slots.LayerAttention`; tokens are rows."""
        keys, values = self._values[layer, 0], self._values[layer, 1]
        keys[self._slots, :, self._positions] = key[0].transpose(0, 1)
        values[self._slots, :, self._positions] = value[0].transpose(0, 1)
        rows, heads, head_dim = len(self._slots), key.shape[1], query.shape[3]
        grouped = query[0].transpose(0, 1).reshape(rows, heads, -1, head_dim)
        keys, values = keys[:rows, :, : self._length], values[:rows, :, : self._length]
        if query.dtype == torch.float32:
            # Written out: exactly the products of the plain path, whatever kernel SDPA would take.
            weights = torch.softmax((grouped * scaling) @ keys.transpose(2, 3) + self._bias, dim=-1)
            output = weights @ values
        else:
            output = functional.scaled_dot_product_attention(
                grouped, keys, values, attn_mask=self._bias, scale=scaling
            )
        return output.reshape(1, rows, -1, head_dim)


class StaticDecode:
    """Runs bursts of decode steps over a slot store, from graphs where the device has them."""

    def __init__(self, model: nn.Module, store: SlotStore, *, slots: int) -> None:
        self._model, self._store, self._most = model, store, slots
        self.burst = BURST
        """Most steps of a call to `run`."""
        self._device = store.values.device
        self._capturing = self._device.type == "cuda"
        self._graphs: dict[tuple[int, int], Any] = {}
        self._captured: Tensor | None = None
        """The buffer that the graphs were captured over."""
        whole: dict[str, Any] = {"dtype": torch.long, "device": self._device}
        number: dict[str, Any] = {"dtype": torch.float32, "device": self._device}
        self._tokens = torch.zeros(slots, **whole)
        self._positions = torch.zeros(slots, **whole)
        self._step = torch.zeros(1, **whole)
        self._slots = torch.arange(slots, **whole)
        self._temperatures = torch.zeros(slots, **number)
        self._uniforms = torch.zeros(self.burst, slots, **number)
        self._drawn = torch.zeros(self.burst, slots, **whole)
        self._logprobs = torch.zeros(self.burst, slots, **number)
        self._no_mask = torch.zeros(1, 1, 1, 1, device=self._device)
        self._pool: Any = None
        self._norms: list[Norm] | None = None
        """Found at the first step, when the weights are where they stay."""

    @property
    def graphs(self) -> int:
        """Captured shapes."""
        return len(self._graphs)

    def drop(self) -> None:
        """Forget all graphs, and with them the buffer that they were captured over."""
        self._graphs.clear()
        self._captured = None
        # A pool without graphs is gone; its handle must not be used again.
        self._pool = None

    def run(self, burst: Burst) -> tuple[list[list[int]], list[list[float]]]:
        """Token ids and log-probabilities, by step and then by slot. The store must have the room.

        Raises ArithmeticError for logits that are no numbers, and whatever the device raises.
        """
        running, steps = len(burst.tokens), len(burst.uniforms)
        if self._captured is not self._store.values:
            self.drop()
            self._captured = self._store.values
        rows = self._rounded(running)
        length = min(power_of_two(max(burst.positions) + steps), self._store.values.shape[4])
        self._upload(burst, rows)
        for _ in range(steps):
            self._advance(rows, length)
        tokens = cast("list[list[int]]", self._drawn[:steps, :running].tolist())
        logprobs = self._logprobs[:steps, :running]
        if not bool(torch.isfinite(logprobs).all()):
            raise ArithmeticError("the model's logits are not finite: its weights have diverged")
        return tokens, cast("list[list[float]]", logprobs.tolist())

    def _rounded(self, running: int) -> int:
        paced = -(-running // _PACE) * _PACE if running > _PACE else power_of_two(running, 1)
        return min(paced, self._most)

    def _upload(self, burst: Burst, rows: int) -> None:
        padding = [0] * (rows - len(burst.tokens))
        whole = torch.tensor([[*burst.tokens, *padding], [*burst.positions, *padding]])
        numbers = torch.tensor([[*row, *padding] for row in (burst.temperatures, *burst.uniforms)])
        whole, numbers = whole.to(self._device), numbers.to(self._device, torch.float32)
        self._tokens[:rows], self._positions[:rows] = whole[0], whole[1]
        self._temperatures[:rows] = numbers[0]
        self._uniforms[: len(burst.uniforms), :rows] = numbers[1:]
        self._step.zero_()

    def _advance(self, rows: int, length: int) -> None:
        """One step. The first of a shape runs as it is, which warms up what its capture needs."""
        if (graph := self._graphs.get((rows, length))) is not None:
            graph.replay()
            return
        self._compute(rows, length)
        if not self._capturing:
            return
        try:
            self._graphs[rows, length] = self._capture(rows, length)
        except RuntimeError as error:  # the model asks the host something, or there is no memory for graphs
            self._capturing = False
            reason = str(error).strip().splitlines()[0]
            _LOG.warning("decode steps run without CUDA graphs, several times slower: %s", reason)

    def _capture(self, rows: int, length: int) -> Any:
        cuda: Any = torch.cuda
        graph = cuda.CUDAGraph()
        # Graphs never run side by side, so they may share their memory.
        self._pool = self._pool or cuda.graph_pool_handle()
        # Other threads may use the device meanwhile; what they do is not captured.
        with cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._compute(rows, length)
        return graph

    def _compute(self, rows: int, length: int) -> None:
        """One step in place: the state of the first `rows` slots becomes that of the next step."""
        if self._norms is None:
            self._norms = find_norms(self._model)
        with replaced(self._norms):
            self._decode(rows, length)

    def _decode(self, rows: int, length: int) -> None:
        tokens, positions = self._tokens[:rows], self._positions[:rows]
        attention = StaticAttention(self._store.values, positions, self._slots[:rows], length)
        logits = cast("Any", self._model)(
            input_ids=tokens[None],
            position_ids=positions[None],
            attention_mask=self._no_mask,
            use_cache=False,
            slots=attention,
        ).logits[0]
        uniforms = self._uniforms[:, :rows].index_select(0, self._step)[0]
        drawn, logprobs = draw_on_device(logits, self._temperatures[:rows], uniforms)
        self._drawn[:, :rows].index_copy_(0, self._step, drawn[None])
        self._logprobs[:, :rows].index_copy_(0, self._step, logprobs[None])
        tokens.copy_(drawn)
        positions.add_(1)
        self._step.add_(1)
