"""What fits into an auxiliary model's context: stated cuts, never an error.

Tokens are estimated from characters, three a token, which over-counts English and code. Must not know what is
cut.
"""

from collections.abc import Callable, Sequence
from typing import Final

_CHARACTERS_A_TOKEN: Final = 3
LEFT_OUT: Final = "[This exchange was left out, for the conversation no longer fits.]"


def estimated_tokens(text: str) -> int:
    return len(text) // _CHARACTERS_A_TOKEN + 1


def first_that_fits(versions: Sequence[Callable[[], str]], room: int) -> str:
    """The first version, from the richest to the poorest, of at most `room` tokens; the last cut by force."""
    text = ""
    for make in versions:
        text = make()
        if estimated_tokens(text) <= room:
            return text
    keep = max(0, room * _CHARACTERS_A_TOKEN)
    return text[:keep] + f"\n[{len(text) - keep} characters were cut here; read the fields that matter.]"


def fitting(messages: Sequence[dict[str, str]], room: int) -> list[dict[str, str]]:
    """The conversation within `room` tokens: the oldest exchanges after the first two messages go first."""
    kept = list(messages)
    for place in range(2, len(kept) - 2):
        if sum(estimated_tokens(message["content"]) for message in kept) <= room:
            break
        kept[place] = {**kept[place], "content": LEFT_OUT}
    return kept
