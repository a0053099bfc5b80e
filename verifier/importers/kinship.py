"""Which rows of a source share material: rows with a common key, directly or through others, are of one kin.

A source states its material as keys: a DOI, the genes of a locus, the passages of a protocol. The name of a
kin is a digest of its smallest key, so it tells nothing and does not depend on the order of the rows.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

SAMPLED: Final = 4
"""Of a text's passages, one in so many is kept as a key; which, only the passage decides."""


class Kinship:
    """Joins keys. Holds one 8-byte digest a key."""

    def __init__(self) -> None:
        self._parents: dict[bytes, bytes] = {}

    def join(self, keys: Iterable[str]) -> None:
        """The rows that have any of these keys are of one kin."""
        roots = {self._root(_digest(key)) for key in keys}
        if roots:
            least = min(roots)
            for root in roots:
                self._parents[root] = least

    def name(self, key: str) -> str:
        """The name of the kin of a row, by any one of its keys: 12 hexadecimal digits."""
        return hashlib.sha256(self._root(_digest(key))).hexdigest()[:12]

    def _root(self, key: bytes) -> bytes:
        parents = self._parents
        root = parents.setdefault(key, key)
        while parents[root] != root:
            root = parents[root]
        while parents[key] != root:
            parents[key], key = root, parents[key]
        return root


def passages(parts: Sequence[str], length: int) -> Iterator[str]:
    """A sample of the runs of `length` parts in a text, and the whole text: texts that share a long run share
    one of these, but for a chance of 1 - 1/SAMPLED for each of the shared runs."""
    whole = "\n".join(parts)
    yield whole
    for start in range(len(parts) - length + 1):
        passage = "\n".join(parts[start : start + length])
        if zlib.crc32(passage.encode()) % SAMPLED == 0:
            yield passage


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8).digest()
