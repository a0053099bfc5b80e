"""Finds recorded tool output inside any text, whatever its label (HOST-04).

Two texts share tool text where they share a run of letters and digits; spacing, punctuation, case and
escaped line breaks do not matter, so a wrapped, quoted or re-joined copy is still found. Any shared run
of `WINDOW + STEP - 1` letters and digits is found, shorter ones may be. Text that is public anyway (the
question, the host's guidance) is never tool text. Knows nothing of messages, roles or budgets.
"""

import re
from collections.abc import Iterable

WINDOW = 24
STEP = 8
_WORD = re.compile(r"[^\W_]+")
_ESCAPED_BREAK = re.compile(r"\\[nrt]")
_JOIN_WITHIN = 16
"""Two found spans this many characters apart are one."""


def _letters(text: str) -> tuple[str, list[int]]:
    """Lower-case letters and digits of a text, and where each stood."""
    # Two spaces for a two-character escape keep every position.
    plain = _ESCAPED_BREAK.sub("  ", text)
    words: list[str] = []
    positions: list[int] = []
    for match in _WORD.finditer(plain):
        word = match.group()
        lowered = word.lower()
        words.append(lowered if len(lowered) == len(word) else word)
        positions.extend(range(match.start(), match.end()))
    return "".join(words), positions


def _windows(letters: str, step: int) -> set[str]:
    last = len(letters) - WINDOW
    if last < 0:
        return set()
    return {letters[start : start + WINDOW] for start in (*range(0, last, step), last)}


class ToolText:
    """An index of the observations that one episode has recorded."""

    def __init__(self, public: Iterable[str]) -> None:
        self._public: set[str] = set()
        for text in public:
            self._public |= _windows(_letters(text)[0], 1)
        self._seen: set[str] = set()

    def add(self, observation: str) -> None:
        self._seen |= _windows(_letters(observation)[0], STEP) - self._public

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The parts [start, end) of a text that repeat a recorded observation, in order, disjoint."""
        if not self._seen:
            return []
        letters, positions = _letters(text)
        spans: list[tuple[int, int]] = []
        for start in range(len(letters) - WINDOW + 1):
            if letters[start : start + WINDOW] in self._seen:
                first, end = positions[start], positions[start + WINDOW - 1] + 1
                if spans and first - spans[-1][1] <= _JOIN_WITHIN:
                    spans[-1] = (spans[-1][0], end)
                else:
                    spans.append((first, end))
        return spans
