"""An option of a multiple-choice question: its letter, its text, or both where they agree (DATA-04)."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from verifier.answers.parsed import ParsedAnswer, invalid, valid
from verifier.answers.text import MARKUP, normalise, visible

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTER_AND_TEXT: Final = re.compile(r"([A-Za-z])[.)]\s*(\S.*)", re.DOTALL)


def read_letter(content: str, options: Sequence[str]) -> ParsedAnswer:
    """The letter is tried first, for an option's text may itself be one letter long."""
    letters = LETTERS[: len(options)]
    said = unicodedata.normalize("NFKC", visible(content)).strip()
    if not said:
        return invalid("empty answer")
    letter = said.upper() if len(said) == 1 and said.isascii() and said.isalpha() else ""
    if letter and letter in letters:
        return valid(letter)
    folded = [normalise(option) for option in options]
    stated = normalise(content)
    matches = [name for name, option in zip(letters, folded, strict=False) if option == stated]
    if len(matches) == 1:
        return valid(matches[0])
    if matches:
        return invalid("the text of more than one option")
    both = _LETTER_AND_TEXT.fullmatch(said)
    if both and both[1].upper() in letters:
        agrees = folded[letters.index(both[1].upper())] == normalise(both[2])
        return valid(both[1].upper()) if agrees else invalid("letter and text disagree")
    if letter:
        return invalid(f"no option {letter}")
    return invalid("markup" if MARKUP.search(said) else "not an option")
