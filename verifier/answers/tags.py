"""The `<answer>` tags of a text: one pair, spelt exactly, or no answer (DATA-04, case T08).

The whole text counts, quotations and thinking included: choosing among several pairs would let a text hedge.
"""

import re
from dataclasses import dataclass
from typing import Final

OPEN: Final = "<answer>"
CLOSE: Final = "</answer>"
_LIKE: Final = re.compile(
    r"<\s{0,4}/?\s{0,4}answer(?:\s[^<>]{0,80})?\s{0,4}/?\s{0,4}>", re.IGNORECASE | re.ASCII
)
"""Whatever means to be such a tag. Bounded repeats, so that no text makes it slow."""
_MOST_SHOWN: Final = 5
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Tagged:
    """The content between the tags, or None and the reason."""

    content: str | None
    reason: str
    shown: str
    """Each pair's content in double quotes, shortened."""


def read_tags(text: str) -> Tagged:
    """Find the one pair. Lone surrogates in the content become `?`. Never raises."""
    opened, closed = text.count(OPEN), text.count(CLOSE)
    if opened <= 1 and closed <= 1 and (misspelt := _misspelt(text)):
        # One exact pair beside them is no answer either: two answers were given.
        return Tagged(None, "misspelt tags", _shown(misspelt))
    if opened != closed:
        return Tagged(None, f"unpaired tags: {opened} open, {closed} closed", _contents(text))
    if opened != 1:
        return Tagged(None, f"tags = {opened}", _contents(text))
    start, end = text.index(OPEN) + len(OPEN), text.index(CLOSE)
    if end < start:
        return Tagged(None, "the closing tag comes first", "")
    content = text[start:end]
    if not content.isascii():
        content = content.encode("utf-8", "replace").decode("utf-8")
    return Tagged(content, "ok", _shown([content]))


def _misspelt(text: str) -> list[str]:
    found: list[str] = []
    for tag in _LIKE.finditer(text):
        if tag[0] in (OPEN, CLOSE):
            continue
        found.append(tag[0])
        if len(found) == _MOST_SHOWN:
            break
    return found


def _contents(text: str) -> str:
    """What follows each opening tag, up to the next tag."""
    return _shown([piece.split(CLOSE, 1)[0] for piece in text.split(OPEN, _MOST_SHOWN + 1)[1:]])


def _shown(contents: list[str]) -> str:
    shown = [_shortened(content) for content in contents[:_MOST_SHOWN]]
    more = " and more" if len(contents) > _MOST_SHOWN else ""
    return ", ".join(f'"{content}"' for content in shown) + more


def _shortened(content: str) -> str:
    line = " ".join(content[: 4 * _SHOWN].encode("utf-8", "replace").decode("utf-8").split())
    cut = line if len(line) <= _SHOWN and len(content) <= 4 * _SHOWN else line[:_SHOWN] + "…"
    if cut.isprintable():
        return cut
    # What shows nothing is often the very reason; and no control character may reach a terminal.
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in cut
    )
