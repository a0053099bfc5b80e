"""One finite number, and the unit that may follow it (DATA-04)."""

import re
import unicodedata
from decimal import Decimal
from typing import Final

from verifier.answers.parsed import ParsedAnswer, invalid, valid
from verifier.answers.text import MARKUP, narrow

_LONGEST: Final = 200
_SUPERSCRIPTS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_DIGITS: Final = r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_POWER: Final = r"10(?:(?:\^|\*\*)[+-]?[0-9]{1,4}|[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4})"
_UNIT: Final = r"\s*(?:[^\W\d_]|[%°])(?:[^\d<>]|(?<=[^\W\d_])[0-9](?!\w)|(?<=[\^-])[0-9](?!\w))*"
"""A digit ends a unit, right after a letter, `^` or `-` (m2, s-1): `5 to 6` is two numbers, 0x10 is none."""
_NUMBER: Final = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<digits>{_DIGITS})"
    rf"(?:[eE](?P<exponent>[+-]?[0-9]{{1,4}})|\s?[x×·*]\s?(?P<power>{_POWER}))?|(?P<alone>{_POWER}))"
    rf"(?P<unit>{_UNIT})?"
)
_LARGEST: Final = Decimal(repr(1.7976931348623157e308))


def read_number(content: str) -> ParsedAnswer:
    """Exact in decimal: no two numbers become one by rounding."""
    said = narrow(content)
    if not said:
        return invalid("empty answer")
    found = _NUMBER.fullmatch(said) if len(said) <= _LONGEST else None
    if found is None:
        return invalid("markup" if MARKUP.search(said) else "not a number")
    power = found["power"] or found["alone"] or ""
    exponent = found["exponent"] or power[2:].lstrip("^*").translate(_SUPERSCRIPTS) or "0"
    digits = (found["digits"] or "1").replace(",", "")
    value = Decimal(f"{found['sign']}{digits}e{exponent}")
    if value.copy_abs() > _LARGEST:
        return invalid("not a finite number")
    return valid(_written(value), "".join((found["unit"] or "").split()))


def fold_unit(unit: str) -> str:
    """Units are equal without regard to case, but M is not m (mega and milli)."""
    plain = "".join(unicodedata.normalize("NFKC", unit).split())
    return "".join(character if character == "M" else character.casefold() for character in plain)


def _written(value: Decimal) -> str:
    short = repr(float(value))
    return short if Decimal(short) == value else str(value)
