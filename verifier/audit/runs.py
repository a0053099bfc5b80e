"""Runs of equal hashes in a sorted array: an inverted index without a dictionary.

Owns counting over runs and pairs. Must not know what the hashes stand for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from verifier.audit.hashing import Bools, Hashes, Owners

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """Runs of two and more equal hashes with the tasks that have them."""

    owners: Owners
    starts: Indices
    sizes: Indices

    @classmethod
    def of(cls, hashes: Hashes, owners: Owners) -> Self:
        """From hashes in rising order."""
        if not len(hashes):
            return cls(owners, np.zeros(0, np.int64), np.zeros(0, np.int64))
        starts = np.concatenate(([0], np.flatnonzero(hashes[1:] != hashes[:-1]) + 1))
        sizes = np.diff(np.concatenate((starts, [len(hashes)])))
        several = sizes > 1
        return cls(owners, starts[several], sizes[several])

    @classmethod
    def sorting(cls, hashes: Hashes) -> Self:
        """From one hash for each task, in order of the tasks."""
        order = np.argsort(hashes, kind="stable")
        return cls.of(hashes[order], order.astype(np.uint32))

    def __len__(self) -> int:
        return len(self.starts)

    def only(self, chosen: Bools) -> "Runs":
        return Runs(self.owners, self.starts[chosen], self.sizes[chosen])

    def members(self) -> tuple[Indices, Owners]:
        """Which run each member is of, and which task it is."""
        of_run = np.repeat(np.arange(len(self)), self.sizes)
        first = np.repeat(self.starts - np.concatenate(([0], np.cumsum(self.sizes)[:-1])), self.sizes)
        return of_run, self.owners[first + np.arange(len(of_run))]

    def counts(self, kinds: NDArray[np.uint8], number: int) -> Indices:
        """Members of each kind in each run; `kinds` is by task. Shape: runs, number."""
        of_run, owners = self.members()
        cells = np.bincount(of_run * number + kinds[owners], minlength=len(self) * number)
        return cells.reshape(-1, number)

    def pairs(self) -> Iterator[tuple[int, Indices, Indices]]:
        """Every two members of every run, the small runs first: size of the runs, first and second task."""
        for size in np.unique(self.sizes).tolist():
            starts = self.starts[self.sizes == size]
            first, second = np.triu_indices(size, 1)
            # As many runs at once as fit in a few megabytes.
            step = max(1, (1 << 18) // len(first))
            for begin in range(0, len(starts), step):
                rows = self.owners[starts[begin : begin + step, None] + np.arange(size)].astype(np.int64)
                yield size, rows[:, first].ravel(), rows[:, second].ravel()
