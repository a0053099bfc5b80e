"""Answer formats: from a submitted text to the answer it states (DATA-04).

Owns the reading of `<answer>` tags and of each format, public knowledge only. Must not know references: a
reference is compared in `verifier/grade.py`.
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from verifier.task import AnswerFormat

GRADING_VERSION: Final = 1
"""Raise it whenever any verdict can change; it is part of the verifier's identity."""

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_OPEN: Final = "<answer>"
_CLOSE: Final = "</answer>"
_LETTER_AND_TEXT: Final = re.compile(r"^([A-Za-z])[.)]\s*(\S.*)$", re.DOTALL)
_RSID: Final = re.compile(r"^rs[0-9]+$", re.IGNORECASE)
_NUMBER: Final = re.compile(
    r"^(?P<sign>[+\-\u2212]?)(?P<body>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?P<exponent>[eE][+-]?[0-9]{1,4})?(?P<unit>(?:\s*[^\W\d_]|\s*[%°])[^\d<>]*)?$"
)
_FORMS: Final = {
    AnswerFormat.LETTER: "letter",
    AnswerFormat.SYMBOL: "symbol",
    AnswerFormat.RSID: "rsID",
    AnswerFormat.NUMBER: "number",
    AnswerFormat.TEXT: "text",
}


class ParsedAnswer(BaseModel):
    """What a text states under a format, before any comparison."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_valid: bool
    answer: str | None
    """Normalised: letter upper case, symbol upper case, number as Python writes the float, text folded."""
    unit: str = ""
    """Text after a number, white space removed; whether it is allowed is the reference's business."""
    reason: str
    """Why the format failed, or "ok"."""


def answer_form(format: AnswerFormat) -> str:
    """The one line that tells a solver the form, for example `<answer>letter</answer>`."""
    return f"{_OPEN}{_FORMS[format]}{_CLOSE}"


def normalise(text: str) -> str:
    """Fold case, compatibility forms and white space. Never raises; lone surrogates become `?`."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return " ".join(unicodedata.normalize("NFKC", clean).casefold().split())


def parse(format: AnswerFormat, text: str, options: Sequence[str] = ()) -> ParsedAnswer:
    """Read the answer out of a submitted text. Never raises, whatever the text holds."""
    opened, closed = text.count(_OPEN), text.count(_CLOSE)
    if opened != closed:
        return _invalid(f"unpaired tags: {opened} open, {closed} closed")
    if opened != 1:
        return _invalid(f"tags = {opened}")
    start, end = text.index(_OPEN) + len(_OPEN), text.index(_CLOSE)
    if end < start:
        return _invalid("the closing tag comes first")
    content = text[start:end].encode("utf-8", "replace").decode("utf-8").strip()
    if not content:
        return _invalid("empty answer")
    return _read(format, content, options)


def _read(format: AnswerFormat, content: str, options: Sequence[str]) -> ParsedAnswer:
    match format:
        case AnswerFormat.LETTER:
            return _read_letter(content, options)
        case AnswerFormat.NUMBER:
            return _read_number(content)
        case AnswerFormat.RSID:
            return _valid(content) if _RSID.match(content) else _invalid("not an rsID")
        case AnswerFormat.SYMBOL:
            return _valid(" ".join(content.upper().split()))
        case AnswerFormat.TEXT:
            folded = normalise(content)
            return _valid(folded) if folded else _invalid("empty answer")


def _read_letter(content: str, options: Sequence[str]) -> ParsedAnswer:
    letters = LETTERS[: len(options)]
    folded = [normalise(option) for option in options]
    said = normalise(content)
    # An option text may itself be one letter long, so the letter is tried first.
    if len(content) == 1 and content.isascii():
        letter = content.upper()
        return _valid(letter) if letter in letters else _invalid(f"no option {letter}")
    matches = [letter for letter, option in zip(letters, folded, strict=False) if option == said]
    if len(matches) == 1:
        return _valid(matches[0])
    if len(matches) > 1:
        return _invalid("the text of more than one option")
    both = _LETTER_AND_TEXT.match(content)
    if both and both[1].upper() in letters:
        letter = both[1].upper()
        agrees = folded[letters.index(letter)] == normalise(both[2])
        return _valid(letter) if agrees else _invalid("letter and text disagree")
    return _invalid("not an option")


def _read_number(content: str) -> ParsedAnswer:
    found = _NUMBER.match(content)
    if found is None:
        return _invalid("not a number")
    sign = "-" if found["sign"] in ("-", "\u2212") else ""
    value = float(sign + found["body"].replace(",", "") + (found["exponent"] or ""))
    if not math.isfinite(value):
        return _invalid("not a finite number")
    unit = "".join((found["unit"] or "").split())
    return ParsedAnswer(format_valid=True, answer=repr(value), unit=unit, reason="ok")


def _valid(answer: str) -> ParsedAnswer:
    return ParsedAnswer(format_valid=True, answer=answer, reason="ok")


def _invalid(reason: str) -> ParsedAnswer:
    return ParsedAnswer(format_valid=False, answer=None, reason=reason)
