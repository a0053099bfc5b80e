"""Words, shingles and names of many texts at once, as 64-bit hashes in arrays.

A word is a run of letters, digits and underscores; ASCII case is folded. A name is a word of at least four
characters with a digit, an underscore or an inner capital, and not a quantity such as `150ml`. The hashes are
equal on every machine. Must not know tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Owners = NDArray[np.uint32]
Bools = NDArray[np.bool_]

SHINGLE: Final = 8
"""Words of a shingle: chance rarely repeats eight words in a row, and a copied sentence has many of them."""

LONGEST_TEXT: Final = 1 << 18
"""Characters of one text that are read."""

_BYTE_BASE: Final = 0x9E3779B97F4A7C15
_WORD_BASE: Final = 0xC2B2AE3D27D4EB4F
_MODULUS: Final = 1 << 64
_SHORTEST_NAME: Final = 4
_LONGEST_NUMBER_WITHOUT_MEANING: Final = 6


@dataclass(frozen=True)
class Words:
    """The words of a batch of texts, in order."""

    hashes: Hashes
    owners: Owners
    """Which text of the batch each word is of."""
    names: Bools
    """Which words are names."""
    texts: int
    """Texts in the batch, those without words counted."""


def words(texts: Sequence[str]) -> Words:
    """Hash every word of the texts."""
    encoded = [text[:LONGEST_TEXT].encode(errors="replace") for text in texts]
    data = np.frombuffer(b"\n".join(encoded) + b"\n", dtype=np.uint8)
    inside = _IS_WORD[data]
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    if inside[0]:
        edges = np.concatenate(([0], edges))
    starts, ends = edges[0::2], edges[1::2]
    hashes = _spans(_FOLDED[data], starts, ends)
    text_ends = np.cumsum(np.fromiter((len(item) + 1 for item in encoded), np.int64, len(encoded)))
    owners = np.searchsorted(text_ends, starts, side="right").astype(np.uint32)
    return Words(hashes, owners, _names(data, starts, ends), len(texts))


def shingles(found: Words) -> tuple[Hashes, Owners]:
    """Hash and owner of every run of `SHINGLE` words inside one text."""
    count = len(found.hashes) - SHINGLE + 1
    if count <= 0:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint32)
    total = np.zeros(count, np.uint64)
    for offset in range(SHINGLE):
        total = total * np.uint64(_WORD_BASE) + found.hashes[offset : offset + count]
    whole = found.owners[:count] == found.owners[SHINGLE - 1 :]
    return _mixed(total[whole]), found.owners[:count][whole]


def names(found: Words) -> tuple[Hashes, Owners]:
    """Hash and owner of every name."""
    return found.hashes[found.names], found.owners[found.names]


def sequences(found: Words) -> Hashes:
    """One hash for each text: that of its words in their order. A text without words has 0."""
    bounds = np.searchsorted(found.owners, np.arange(found.texts + 1, dtype=np.uint32))
    return _sums(found.hashes, bounds[:-1], bounds[1:], _WORD_BASE)


def strings(texts: Sequence[str]) -> Hashes:
    """One hash for each text, every byte counted. An empty text has 0."""
    encoded = [text.encode(errors="replace") for text in texts]
    data = np.frombuffer(b"\n".join(encoded) + b"\n", dtype=np.uint8)
    ends = np.cumsum(np.fromiter((len(item) + 1 for item in encoded), np.int64, len(encoded))) - 1
    starts = np.concatenate(([0], ends[:-1] + 1))
    return _spans(data, starts, ends)


def _names(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Bools:
    # Three counts in one running sum, 21 bits each: a batch and the longest text have fewer bytes.
    totals = np.concatenate((np.zeros(1, np.int64), np.cumsum(_KINDS[data])))
    counts = totals[ends] - totals[starts]
    digits, letters = counts & _COUNT, (counts >> _BITS) & _COUNT
    first, last, length = data[starts], data[ends - 1], ends - starts
    marks = (counts >> (2 * _BITS)) - _IS_CAPITAL[first]
    quantity = _IS_DIGIT[first] & _IS_LETTER[last]
    number = (letters == 0) & (length <= _LONGEST_NUMBER_WITHOUT_MEANING)
    return ((digits > 0) | (marks > 0)) & (length >= _SHORTEST_NAME) & ~quantity & ~number


def _spans(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Hashes:
    return _sums(data.astype(np.uint64) + np.uint64(1), starts, ends, _BYTE_BASE)


def _sums(values: Hashes, starts: NDArray[np.int64], ends: NDArray[np.int64], base: int) -> Hashes:
    """The polynomial hash of each span, from one running sum: divided by the power at which it starts."""
    powers, inverses = _powers(base, _rounded(len(values)))
    running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values * powers[: len(values)])))
    return _mixed((running[ends] - running[starts]) * inverses[starts])


def _mixed(values: Hashes) -> Hashes:
    """A permutation that spreads the bits: sketches keep the smallest hashes."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _rounded(length: int) -> int:
    return max(1 << 16, 1 << length.bit_length())


@cache
def _powers(base: int, length: int) -> tuple[Hashes, Hashes]:
    """Powers of `base` and of its inverse modulo 2^64."""
    both = (base, pow(base, -1, _MODULUS))
    first, second = (
        np.cumprod(np.concatenate((np.ones(1, np.uint64), np.full(length - 1, item, np.uint64))))
        for item in both
    )
    return first, second


def _class(characters: bytes) -> Bools:
    table = np.zeros(256, np.bool_)
    table[list(characters)] = True
    return table


_DIGITS: Final = b"0123456789"
_CAPITALS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_IS_DIGIT: Final = _class(_DIGITS)
_IS_CAPITAL: Final = _class(_CAPITALS)
_IS_LETTER: Final = _class(_CAPITALS + _CAPITALS.lower())
_BITS: Final = 21
_COUNT: Final = (1 << _BITS) - 1
_KINDS: Final = (
    _IS_DIGIT.astype(np.int64)
    | (_IS_LETTER.astype(np.int64) << _BITS)
    | ((_IS_CAPITAL | _class(b"_")).astype(np.int64) << (2 * _BITS))
)
"""By byte: one for a digit, for a letter, and for a capital or an underscore."""
_IS_WORD: Final = _class(_DIGITS + _CAPITALS + _CAPITALS.lower() + b"_" + bytes(range(128, 256)))
_FOLDED: Final = np.arange(256, dtype=np.uint8)
_FOLDED[list(_CAPITALS)] += 32
