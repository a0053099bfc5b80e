"""Answer formats: from a submitted text to the answer it states (DATA-04).

Owns what counts as an answer, public knowledge only; docs/grading.md has the decisions one by one. An answer
is what stands bare between one pair of tags. Spellings of the same thing are read (case, full-width forms,
invisible characters, powers of ten); markup and second thoughts are not, for a grader must not choose.

Must not know references: they are compared in `verifier/comparison.py`. Needs no pydantic, as the grader's
process does not.
"""

from collections.abc import Sequence
from typing import Final

from verifier.answer_format import AnswerFormat
from verifier.answers.letter import LETTERS, read_letter
from verifier.answers.number import read_number
from verifier.answers.parsed import ParsedAnswer, invalid, valid
from verifier.answers.symbol import read_rsid, read_set, read_symbol, read_text
from verifier.answers.tags import CLOSE, OPEN, read_tags
from verifier.answers.text import normalise

__all__ = ["GRADING_VERSION", "LETTERS", "ParsedAnswer", "answer_form", "normalise", "parse", "read_content"]

GRADING_VERSION: Final = 2
"""Raise it whenever any verdict can change; it is part of the verifier's identity."""

_FORMS: Final = {
    AnswerFormat.LETTER: "letter",
    AnswerFormat.SYMBOL: "symbol",
    AnswerFormat.RSID: "rsID",
    AnswerFormat.NUMBER: "number",
    AnswerFormat.SET: "item, item",
    AnswerFormat.TEXT: "text",
    AnswerFormat.FILES: "done",
}


def answer_form(format: AnswerFormat) -> str:
    """The one line that tells a solver the form, for example `<answer>letter</answer>`."""
    return f"{OPEN}{_FORMS[format]}{CLOSE}"


def parse(format: AnswerFormat, text: str, options: Sequence[str] = ()) -> ParsedAnswer:
    """Read the answer out of a submitted text. Never raises, whatever the text holds."""
    if format is AnswerFormat.FILES:
        return valid("submitted")
    tagged = read_tags(text)
    if tagged.content is None:
        return invalid(tagged.reason, tagged.shown)
    return read_content(format, tagged.content, options).showing(tagged.shown)


def read_content(format: AnswerFormat, content: str, options: Sequence[str] = ()) -> ParsedAnswer:
    """Read what stands between the tags."""
    match format:
        case AnswerFormat.LETTER:
            return read_letter(content, options)
        case AnswerFormat.NUMBER:
            return read_number(content)
        case AnswerFormat.RSID:
            return read_rsid(content)
        case AnswerFormat.SYMBOL:
            return read_symbol(content)
        case AnswerFormat.SET:
            return read_set(content)
        case AnswerFormat.TEXT:
            return read_text(content)
        case AnswerFormat.FILES:
            return valid("submitted")
