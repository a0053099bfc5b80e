"""The comparison of a stated answer with the reference of its task (DATA-04). Runs in the grader's process.

An outcome carries a short reason and what the text itself said, never anything of the reference.
"""

import re
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Final, NamedTuple

from verifier.answer_format import AnswerFormat
from verifier.answers import ParsedAnswer, parse, read_content
from verifier.answers.number import fold_unit
from verifier.references import Reference

_SHOWN: Final = 200
_MORE_THAN_A_NAME: Final = re.compile(r"[\s,;/|()\[\]]")
_EXACT: Final = Context(prec=2000)
"""Differences of any two readable numbers, to the last digit."""


class Outcome(NamedTuple):
    """The fields of a `Verdict`."""

    format_valid: bool
    correct: bool
    answer: str | None
    reason: str
    diagnosis: str


def grade_text(format: AnswerFormat, options: Sequence[str], reference: Reference, text: str) -> Outcome:
    """What one text is worth. Never raises on any text."""
    stated = parse(format, text, options)
    if stated.answer is None:
        return Outcome(False, False, None, stated.reason, stated.shown)
    correct, reason = _compare(format, stated, stated.answer, reference, options)
    return Outcome(True, correct, stated.answer[:_SHOWN], reason, stated.shown)


def _compare(
    format: AnswerFormat, stated: ParsedAnswer, answer: str, reference: Reference, options: Sequence[str]
) -> tuple[bool, str]:
    right = read_content(format, reference.answer, options).answer
    if format is AnswerFormat.NUMBER:
        return _compare_numbers(answer, stated.unit, right or "nan", reference)
    if answer == right:
        return True, "right"
    if format is AnswerFormat.RSID and answer.lower() == right:
        return False, "an rsID is written in lower case"
    if format is AnswerFormat.SYMBOL and _MORE_THAN_A_NAME.search(answer):
        return False, "extra text"
    return False, "wrong"


def _compare_numbers(answer: str, unit: str, right: str, reference: Reference) -> tuple[bool, str]:
    if unit and fold_unit(unit) != fold_unit(reference.unit):
        return False, "extra text"
    said, value = Decimal(answer), Decimal(right)
    distance = _EXACT.abs(_EXACT.subtract(said, value))
    relative = _EXACT.multiply(Decimal(repr(reference.relative)), _EXACT.abs(value))
    near = distance <= max(Decimal(repr(reference.absolute)), relative)
    return near, "right" if near else "outside the tolerance"
