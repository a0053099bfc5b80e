"""Spellings of the same text: what no reader can see or would call a difference (DATA-04)."""

import re
import unicodedata
from typing import Final

_INVISIBLE: Final = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""Soft hyphen, zero-width characters, direction marks, byte order mark, tag characters."""
_NARROW: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
"""Full-width forms to ASCII. Not the whole of NFKC, which reads 10⁵ as 105."""
_DASHES: Final = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63"), "-")
MARKUP: Final = re.compile(
    r"""[`$\\{}<>]|\*\*|&\#?\w{1,10};|^[*_~].*[*_~]$|^(["'“‘«]).*["'”’»]$|^(?:[-*•+]|\#{1,6}|[0-9]+[.)])\s""",
    re.DOTALL,
)
"""Markdown, LaTeX, HTML, quotation marks, a list's marks: no part of an answer in a word or a number."""


def visible(text: str) -> str:
    """Without the characters that show nothing, and without white space around."""
    return text.strip() if text.isascii() else _INVISIBLE.sub("", text).strip()


def narrow(text: str) -> str:
    """`visible`, full-width forms as ASCII and every dash as `-`."""
    shown = visible(text)
    return shown if shown.isascii() else shown.translate(_NARROW).translate(_DASHES).strip()


def normalise(text: str) -> str:
    """Fold case, compatibility forms, white space and what is invisible. Lone surrogates become `?`."""
    if text.isascii():
        return " ".join(text.lower().split())
    clean = visible(text.encode("utf-8", "replace").decode("utf-8"))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", clean).casefold())
    return " ".join(folded.split())
