"""Clip text to a token budget: head and tail stay, the middle goes (HOST-05).

A cut falls between two code points, never inside one; a text that fits comes back as it is, so clipping twice
equals clipping once; every loop shrinks by at least one token, so it ends on any input. What is far too long
is cut by characters first, so that the cost is bounded by the limit and not by the text. Knows tokens only
through `TokenCounter`, and nothing of messages or episodes.
"""

from typing import Final, Protocol


class TokenCounter(Protocol):
    """The part of a tokenizer that clipping needs."""

    def count(self, text: str) -> int:
        """Tokens of a text, no special tokens added."""
        ...

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The code points [start, end) that each token covers, in order."""
        ...


CHARACTERS_PER_TOKEN: Final = 12
"""More than ordinary text ever has on average; what exceeds it is not worth a tokenizer's time."""
_SHORT: Final = 1_000
"""Characters that are always worth it."""
_LONG_MARKER_FROM: Final = 48


def bounded(text: str, limit: int) -> str:
    """The text, or its head (3/4) and tail if it is far too long for so many tokens."""
    room = max(_SHORT, CHARACTERS_PER_TOKEN * limit)
    if len(text) <= room:
        return text
    marker = f"\n[... {len(text) - room} characters left out ...]\n"
    head = room * 3 // 4
    return text[:head] + marker + text[len(text) - (room - head - len(marker)) :]


def _marker(limit: int, left_out: int) -> str:
    return f"\n[... {left_out} tokens left out ...]\n" if limit >= _LONG_MARKER_FROM else " ... "


def clip_text(text: str, limit: int, tokens: TokenCounter) -> str:
    """The (bounded) text if it has at most `limit` tokens, else its head (3/4), a marker and its tail.

    The result never has more than `limit` tokens; if not even the marker fits, only a head is left.
    """
    if limit <= 0:
        return ""
    text = bounded(text, limit)
    if tokens.count(text) <= limit:
        return text
    spans = tokens.spans(text)
    marker = _marker(limit, len(spans) - limit)
    room = limit - tokens.count(marker)
    while room > 0:
        head = (room * 3 + 3) // 4
        clipped = _join(text, spans, head, room - head, marker)
        excess = tokens.count(clipped) - limit
        if excess <= 0:
            return clipped
        room -= excess
    return _head_only(text, spans, limit, tokens)


def _join(text: str, spans: list[tuple[int, int]], head: int, tail: int, marker: str) -> str:
    # Several tokens may share one code point: a cut there drops the code point on both sides.
    head_end = spans[head][0]
    tail_start = spans[len(spans) - tail - 1][1] if tail else len(text)
    return text[:head_end] + marker + text[max(head_end, tail_start) :]


def _head_only(text: str, spans: list[tuple[int, int]], limit: int, tokens: TokenCounter) -> str:
    room = limit
    while room > 0:
        clipped = text[: spans[room][0]]
        excess = tokens.count(clipped) - limit
        if excess <= 0:
            return clipped
        room -= excess
    return ""


def clip_observation(stdout: str, error: str, limit: int, tokens: TokenCounter) -> tuple[str, str, bool]:
    """Clip one tool response: the error gets up to a third (at most 512 tokens), the output what is left.

    Returns output, error and whether anything was cut.
    """
    error_limit = limit if not stdout else min(512, limit // 3)
    seen_error = clip_text(error, error_limit, tokens)
    seen_stdout = clip_text(stdout, limit - tokens.count(seen_error), tokens)
    return seen_stdout, seen_error, (seen_stdout, seen_error) != (stdout, error)
