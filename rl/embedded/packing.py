"""Rows as a prefix tree: every token that several rows share is computed once.

The rows of a batch share long prefixes: the system prompt of all tasks, the whole first prompt of a group's
attempts, the earlier turns of an episode. Sorted by their ids, rows are the leaves of a tree in depth-first
order, and each row only adds what follows its common prefix with the row before. The added tokens are laid
side by side in one sequence; position ids say how deep a token is, and a mask lets it see its own ancestors
only. Log-probabilities and gradients equal those of one row at a time, up to rounding (tested).

Must not know losses, rewards or torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl.rows import Row

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """The tokens that one row added: nodes `start` to `end`, below the nodes of `ancestors`."""

    start: int
    end: int
    ancestors: Index


@dataclass(frozen=True)
class Pack:
    """One forward pass: some rows of a batch as a tree."""

    token_ids: Index
    positions: Index
    segments: tuple[Segment, ...]
    members: tuple[int, ...]
    """Indices of the packed rows, in the order of `sources`."""
    sources: tuple[Index, ...]
    """Per member: for each completion token the node whose output predicts it."""

    @property
    def size(self) -> int:
        return len(self.token_ids)

    def attention_mask(self) -> NDArray[np.bool_]:
        """[size, size]; True where the row's node may attend to the column's node."""
        mask = np.zeros((self.size, self.size), dtype=np.bool_)
        for segment in self.segments:
            length = segment.end - segment.start
            mask[segment.start : segment.end, segment.ancestors] = True
            mask[segment.start : segment.end, segment.start : segment.end] = np.tri(length, dtype=np.bool_)
        return mask


class _Builder:
    """Grows one pack row by row. Rows must come sorted by their ids."""

    def __init__(self) -> None:
        self.size = 0
        self.tokens: list[Index] = []
        self.positions: list[Index] = []
        self.segments: list[Segment] = []
        self.members: list[int] = []
        self.sources: list[Index] = []
        self._ids: Index = np.empty(0, dtype=np.int64)
        self._path: Index = np.empty(0, dtype=np.int64)

    def shared(self, ids: Index) -> int:
        """How many leading tokens the row shares with the row added last."""
        length = min(len(ids), len(self._ids))
        different = np.flatnonzero(ids[:length] != self._ids[:length])
        return int(different[0]) if len(different) else length

    def add(self, member: int, ids: Index, first_source: int) -> None:
        shared = self.shared(ids)
        end = self.size + len(ids) - shared
        ancestors = self._path[:shared]
        if end > self.size:
            self.segments.append(Segment(self.size, end, ancestors))
            self.tokens.append(ids[shared:])
            self.positions.append(np.arange(shared, len(ids)))
        self._path = np.concatenate([ancestors, np.arange(self.size, end)])
        self._ids = ids
        self.size = end
        self.members.append(member)
        self.sources.append(self._path[first_source:])

    def pack(self) -> Pack:
        return Pack(
            token_ids=np.concatenate(self.tokens),
            positions=np.concatenate(self.positions),
            segments=tuple(self.segments),
            members=tuple(self.members),
            sources=tuple(self.sources),
        )


def plan_packs(rows: Sequence[Row], token_budget: int) -> list[Pack]:
    """Split rows into packs of at most `token_budget` tokens; a longer single row gets a pack of its own."""
    # The last completion token predicts nothing, so it is no input.
    inputs = [row.prompt_ids + row.completion_ids[:-1] for row in rows]
    packs: list[Pack] = []
    builder = _Builder()
    for member in sorted(range(len(rows)), key=lambda index: inputs[index]):
        ids: Index = np.asarray(inputs[member], dtype=np.int64)
        if builder.members and builder.size + len(ids) - builder.shared(ids) > token_budget:
            packs.append(builder.pack())
            builder = _Builder()
        builder.add(member, ids, len(rows[member].prompt_ids) - 1)
    if builder.members:
        packs.append(builder.pack())
    return packs
