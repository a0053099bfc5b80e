"""Rows laid side by side in one sequence: what a model with recurrent layers can be packed as.

A recurrent layer knows no tree, only sequences that begin and end, so rows share no work here, with one
exception: a row that is the beginning of another one (an earlier call of an episode whose messages only grow)
is read off the longer row's outputs and costs nothing.

Must not know losses, rewards or torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl.embedded.packing import Index
from rl.rows import Row


@dataclass(frozen=True)
class FlatPack:
    """One forward pass: whole sequences, each with positions from 0."""

    token_ids: Index
    positions: Index
    lengths: tuple[int, ...]
    """Tokens of each sequence, in order. The last one is padding where `used` is smaller than their sum."""
    used: int
    """Tokens that belong to rows."""
    members: tuple[int, ...]
    """Indices of the packed rows, in the order of `sources`."""
    sources: tuple[Index, ...]
    """Per member: for each completion token the position in the pack whose output predicts it."""

    @property
    def size(self) -> int:
        return len(self.token_ids)


def plan_flat(rows: Sequence[Row], token_budget: int, bucket: int = 1) -> list[FlatPack]:
    """Split rows into packs of at most `token_budget` tokens, the largest first.

    A longer single row gets a pack of its own. Packs are padded to a multiple of `bucket` tokens, for
    compiled kernels that want few different sizes.
    """
    # The last completion token predicts nothing, so it is no input.
    inputs = [row.prompt_ids + row.completion_ids[:-1] for row in rows]
    sequences = _absorb(inputs)
    longest_first = sorted(sequences, key=lambda host: (-len(inputs[host]), host))
    bins: list[list[int]] = []
    room: list[int] = []
    for host in longest_first:
        length = len(inputs[host])
        # The fullest bin that still has room: fewer, fuller passes.
        fitting = [index for index, free in enumerate(room) if free >= length]
        if fitting:
            best = min(fitting, key=lambda index: room[index])
            bins[best].append(host)
            room[best] -= length
        else:
            bins.append([host])
            room.append(token_budget - length)
    packs = [_pack(rows, inputs, [(host, sequences[host]) for host in hosts], bucket) for hosts in bins]
    return sorted(packs, key=lambda pack: -pack.size)


def _absorb(inputs: Sequence[tuple[int, ...]]) -> dict[int, list[int]]:
    """The rows that are computed, each with all rows that are read off it (itself among them)."""
    order = sorted(range(len(inputs)), key=lambda index: inputs[index])
    hosts: dict[int, list[int]] = {}
    host = -1
    for index in reversed(order):
        # In sorted order whatever begins with a row comes right after it.
        if host < 0 or inputs[host][: len(inputs[index])] != inputs[index]:
            host = index
        hosts.setdefault(host, []).append(index)
    return hosts


def _pack(
    rows: Sequence[Row],
    inputs: Sequence[tuple[int, ...]],
    sequences: Sequence[tuple[int, Sequence[int]]],
    bucket: int,
) -> FlatPack:
    tokens: list[Index] = []
    lengths: list[int] = []
    members: list[int] = []
    sources: list[Index] = []
    start = 0
    for host, readers in sequences:
        tokens.append(np.asarray(inputs[host], dtype=np.int64))
        lengths.append(len(inputs[host]))
        for member in readers:
            row = rows[member]
            first = start + len(row.prompt_ids) - 1
            members.append(member)
            sources.append(np.arange(first, first + len(row.completion_ids)))
        start += lengths[-1]
    if missing := -start % bucket:
        tokens.append(np.zeros(missing, dtype=np.int64))
        lengths.append(missing)
    return FlatPack(
        token_ids=np.concatenate(tokens),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        lengths=tuple(lengths),
        used=start,
        members=tuple(members),
        sources=tuple(sources),
    )
