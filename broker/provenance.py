"""Finds recorded tool output inside the texts of a prompt, whatever their label (HOST-04, HOST-05).

Texts are compared by letters, digits and symbols alone, so spacing, punctuation, case and escaped line breaks
hide nothing. A run of `GRAM` letters that an observation holds is a possible quote. Quotes that lie close
together (a gap of at most twice the quote before it) and hold `QUOTE` letters in all are tool text, each of
them; so a single common word is not, while many short quotes are, also when they are spread over several
messages, re-ordered, or one short observation repeated. An observation of less than `GRAM` letters counts
as a whole, from `SHORTEST` letters on.

Found for certain: any copy of `QUOTE` letters in a row. Not found: output that was transformed (base64,
rot13, translated, spelled out with letters in between), output of punctuation alone, pieces of less than
`GRAM` letters, and quotes so thinly strewn that the program's own text is at least twice as long.

Text that is public anyway (the question, the host's words, the inventory) is never tool text, and neither
is what the task model had said itself before a tool repeated it, such as code in a traceback: not where it
stands as the model's text. Knows nothing of roles, tokens or budgets.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

GRAM: Final = 8
QUOTE: Final = 24
SHORTEST: Final = 3
_WORD: Final = re.compile(r"[^\s!-/:-@\[-`{-~\u2010-\u205e\u2500-\u257f]+")
"""Anything but white space, punctuation and the lines of tables: the "letters" of this module."""
_ESCAPED_BREAK: Final = re.compile(r"\\[nrt]")
_JOIN_WITHIN: Final = 16
"""Two found spans this many characters apart are one."""

Span = tuple[int, int]


def _fold(text: str) -> str:
    """Lower case, one character for one."""
    folded = text.casefold()
    if len(folded) == len(text):
        return folded
    return "".join(low if len(low := letter.casefold()) == 1 else letter for letter in text)


def _letters(text: str) -> str:
    """Folded letters and digits of a text."""
    # Two spaces for a two-character escape keep every position.
    return _fold("".join(_WORD.findall(_ESCAPED_BREAK.sub("  ", text) if "\\" in text else text)))


def _positions(text: str) -> list[int]:
    """Where each letter of `_letters` stands in the text."""
    plain = _ESCAPED_BREAK.sub("  ", text)
    return [place for match in _WORD.finditer(plain) for place in range(match.start(), match.end())]


def _grams(letters: str) -> set[str]:
    return {letters[start : start + GRAM] for start in range(len(letters) - GRAM + 1)}


@lru_cache(maxsize=256)
def _public_grams(text: str) -> frozenset[str]:
    """Kept, for all episodes of a run share their public texts."""
    return frozenset(_grams(_letters(text)))


class Text(NamedTuple):
    """One text of a prompt, to be searched."""

    content: str
    by_model: bool = False
    """Verified to be the task model's own words."""


class ToolText:
    """An index of the observations that one episode has recorded."""

    def __init__(self, public: Iterable[str]) -> None:
        self._public = [_public_grams(text) for text in public]
        self._seen: dict[str, int] = {}
        """Each run of letters, with how many completions there were when a tool first showed it."""
        self._whole: dict[int, dict[str, int]] = {}
        """The same for observations shorter than a gram, by their length."""
        self._completions: list[str] = []
        self._said: dict[str, int] = {}
        """Each run of letters of the completions read so far, with the number of the first that has it."""
        self._read = 0

    def add(self, observation: str) -> None:
        """Record what a tool showed."""
        letters, now = _letters(observation), len(self._completions)
        if len(letters) >= GRAM:
            grams = _grams(letters).difference(*self._public)
            self._seen = {**dict.fromkeys(grams, now), **self._seen}
        elif len(letters) >= SHORTEST:
            self._whole.setdefault(len(letters), {}).setdefault(letters, now)

    def add_completion(self, text: str) -> None:
        """Record what the task model said."""
        self._completions.append(text)

    def spans(self, text: str) -> list[Span]:
        """The parts [start, end) of one text that repeat a recorded observation, in order, disjoint."""
        return self.spans_of([Text(text)])[0]

    def spans_of(self, texts: Sequence[Text]) -> list[list[Span]]:
        """The same for all texts of one prompt together, so that splitting a copy over them hides nothing."""
        nothing: list[list[Span]] = [[] for _ in texts]
        if not self._seen and not self._whole:
            return nothing
        letters = [_letters(text.content) for text in texts]
        ends: list[int] = []
        for part in letters:
            ends.append((ends[-1] if ends else 0) + len(part))
        runs = _close_together(self._runs("".join(letters), texts, ends))
        if not runs:
            return nothing
        spans: list[list[Span]] = []
        start = 0
        for text, end in zip(texts, ends, strict=True):
            first = bisect_right(runs, start, key=lambda run: run[1])
            after = bisect_left(runs, end, key=lambda run: run[0])
            inside = [(max(a, start) - start, min(b, end) - start) for a, b in runs[first:after]]
            spans.append(_joined(text.content, [(a, b) for a, b in inside if a < b]))
            start = end
        return spans

    def _runs(self, letters: str, texts: Sequence[Text], ends: list[int]) -> list[Span]:
        """Possible quotes in the joined letters: in order, disjoint."""
        found: list[tuple[int, int, int]] = []
        for size, seen in ((GRAM, self._seen), *self._whole.items()):
            found += [
                (start, start + size, since)
                for start in range(len(letters) - size + 1)
                if (since := seen.get(letters[start : start + size])) is not None
            ]
        if len(self._whole):
            found.sort()
        runs: list[Span] = []
        place = 0
        for start, end, since in found:
            while ends[place] <= start:
                place += 1
            if texts[place].by_model and self._model_first(letters[start:end], since):
                continue
            if runs and start <= runs[-1][1]:
                runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
            else:
                runs.append((start, end))
        return runs

    def _model_first(self, piece: str, since: int) -> bool:
        """Whether one of the first `since` completions has this run of letters."""
        while self._read < len(self._completions):
            grams = dict.fromkeys(_grams(_letters(self._completions[self._read])), self._read)
            self._said = {**grams, **self._said}
            self._read += 1
        if len(piece) == GRAM:
            return self._said.get(piece, since) < since
        return any(piece in _letters(text) for text in self._completions[:since])


def _close_together(runs: list[Span]) -> list[Span]:
    """The runs that lie close to others and make up a quote with them."""
    kept: list[Span] = []
    group: list[Span] = runs[:1]
    for before, run in pairwise(runs):
        if run[0] - before[1] > 2 * (before[1] - before[0]):
            kept += _quote(group)
            group = []
        group.append(run)
    return kept + _quote(group)


def _quote(group: list[Span]) -> list[Span]:
    return group if sum(end - start for start, end in group) >= QUOTE else []


def _joined(text: str, runs: list[Span]) -> list[Span]:
    """Runs of a text's letters as spans of its characters."""
    if not runs:
        return []
    positions = _positions(text)
    spans: list[Span] = []
    for start, end in runs:
        first, after = positions[start], positions[end - 1] + 1
        if spans and first - spans[-1][1] <= _JOIN_WITHIN:
            spans[-1] = (spans[-1][0], after)
        else:
            spans.append((first, after))
    return spans
