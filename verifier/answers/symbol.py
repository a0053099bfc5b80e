"""Names: gene symbols, dbSNP ids, sets of names, free text (DATA-04)."""

import re
from typing import Final

from verifier.answers.parsed import ParsedAnswer, invalid, valid
from verifier.answers.text import MARKUP, narrow, normalise, visible

_RSID: Final = re.compile(r"rs[0-9]+", re.IGNORECASE | re.ASCII)
_BETWEEN: Final = re.compile(r"[,;\n]")
_BRACKETED: Final = re.compile(r"^[\[(].*[\])]$", re.DOTALL)


def read_symbol(content: str) -> ParsedAnswer:
    """Upper case. Words beside the symbol stay in it, and make it a wrong one."""
    said = narrow(content)
    return invalid("markup") if MARKUP.search(said) else valid(_upper(said))


def read_rsid(content: str) -> ParsedAnswer:
    """As it was written, case included: the comparison is exact."""
    said = visible(content)
    if _RSID.fullmatch(said):
        return valid(said)
    if not said:
        return invalid("empty answer")
    return invalid("markup" if MARKUP.search(said) else "not an rsID")


def read_set(content: str) -> ParsedAnswer:
    """Items as symbols, each once, sorted; commas, semicolons and line ends part them."""
    said = narrow(content)
    items = [item for piece in _BETWEEN.split(said) if (item := piece.strip())]
    if _BRACKETED.search(said) or any(MARKUP.search(item) for item in items):
        return invalid("markup")
    return valid(", ".join(sorted({_upper(item) for item in items})))


def read_text(content: str) -> ParsedAnswer:
    """Folded. Any text is one: what is markup elsewhere may belong to it."""
    return valid(normalise(content))


def _upper(text: str) -> str:
    return " ".join(text.upper().split())
