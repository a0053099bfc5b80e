"""Keys and values of recent prompts and completions, kept across batches in blocks of a few tokens.

A block's name is (the block before it, its tokens), so equal names mean equal whole prefixes. Least recently
used blocks go first. Must not know slots or sequences; the weights it belongs to are the caller's concern
(`clear` when they change).
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import torch

BLOCK: Final = 8
"""Tokens a block. Small, because what lies past the last full block is computed again."""
_ROOT: Final = 0
_GROWTH: Final = 256


class PrefixCache:
    """Blocks of shape [layers, 2, heads, BLOCK, head_dim], at most `capacity_bytes` of them."""

    def __init__(
        self, layers: int, heads: int, head_dim: int, *, capacity_bytes: int, like: torch.Tensor
    ) -> None:
        """`like`: a tensor of the precision and device to use."""
        self._shape = (layers, 2, heads, BLOCK, head_dim)
        block_bytes = torch.Size(self._shape).numel() * like.dtype.itemsize
        self.capacity = capacity_bytes // block_bytes
        self._dtype = like.dtype
        self._device = like.device
        self.clear()

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self._pool = torch.empty((0, *self._shape), dtype=self._dtype, device=self._device)
        self._serial = _ROOT
        # (serial of the block before, tokens) -> (serial, row in the pool), least recently used first
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, tokens: Sequence[int]) -> torch.Tensor | None:
        """Keys and values of the longest cached prefix, [layers, 2, heads, n, head_dim]; None if n is 0."""
        rows = self._walk(tokens)
        if not rows:
            return None
        found = self._pool[torch.tensor(rows, device=self._device)]
        layers, _, heads, _, head_dim = self._shape
        return found.permute(1, 2, 3, 0, 4, 5).reshape(layers, 2, heads, len(rows) * BLOCK, head_dim)

    def insert(self, tokens: Sequence[int], values: torch.Tensor) -> None:
        """Keep the full blocks of `tokens`, given as [layers, 2, heads, >= len(tokens), head_dim]."""
        known = len(self._walk(tokens))
        blocks = [tuple(tokens[at : at + BLOCK]) for at in range(0, len(tokens) - BLOCK + 1, BLOCK)]
        if known == len(blocks) or len(blocks) > self.capacity:
            return
        rows: list[int] = []
        before = _ROOT
        for number, block in enumerate(blocks):
            if number < known:
                before = self._blocks[before, block][0]
                continue
            row = self._free_row()
            self._serial += 1
            self._blocks[before, block] = (self._serial, row)
            before = self._serial
            rows.append(row)
        new = values[..., known * BLOCK : len(blocks) * BLOCK, :]
        new = new.reshape(*new.shape[:3], len(rows), BLOCK, new.shape[4]).permute(3, 0, 1, 2, 4, 5)
        self._pool[torch.tensor(rows, device=self._device)] = new
        self._walk(tokens)  # leaves the chain in the order in which it may be forgotten

    def _walk(self, tokens: Sequence[int]) -> list[int]:
        """Pool rows of the longest known prefix; its blocks become the most recently used."""
        names: list[tuple[int, tuple[int, ...]]] = []
        rows: list[int] = []
        before = _ROOT
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            name = (before, tuple(tokens[at : at + BLOCK]))
            if (entry := self._blocks.get(name)) is None:
                break
            before, row = entry
            names.append(name)
            rows.append(row)
        # Last block first, so that a block is never older than those that build on it.
        for name in reversed(names):
            self._blocks.move_to_end(name)
        return rows

    def _free_row(self) -> int:
        if len(self._blocks) >= self.capacity:
            _, (_, row) = self._blocks.popitem(last=False)
            return row
        row = len(self._blocks)
        if row >= len(self._pool):
            size = min(self.capacity, max(_GROWTH, 2 * row))
            grown = torch.empty((size, *self._shape), dtype=self._dtype, device=self._device)
            grown[:row] = self._pool[:row]
            self._pool = grown
        return row
