"""Words that tell the model to guess by place or length instead of by evidence (T04).

Must not know a release: what is searched for is how such sentences are built.
"""

import re
from typing import Final

_VERB: Final = (
    r"(?:answer|choose|pick|prefer|select|guess|say|use|take|return|reply|respond|submit|default\s+to|go\s+"
    r"(?:with|for)|stick\s+(?:with|to)|favou?r|assume)"
)
_LETTER: Final = r"(?:with\s+|the\s+)?(?:option\s+|letter\s+|choice\s+|answer\s+)?[\"'(]?(?-i:[A-J])[\"')]?"
_LISTED: Final = r"(?!\s*(?:,|/|or\b|and\b|to\b|-)\s*[\"'(]?(?-i:[A-J])\b)"
"""`answer A, B or C` names the form and prefers none."""
_END: Final = r"(?=\s*(?:$|\n|[.,;!:)]|(?:if|when|unless|whenever|by\s+default)\b))"
_PREFERENCE: Final = re.compile(rf"\b{_VERB}\s+{_LETTER}{_LISTED}{_END}", re.IGNORECASE)
_TAGGED: Final = re.compile(
    rf"\b(?:unsure|in\s+doubt|uncertain|not\s+sure|cannot\s+decide|no\s+evidence)\b[^.\n]{{0,40}}?"
    rf"(?:<answer>\s*)?(?<![\w-])(?-i:[A-J])(?:\s*</answer>|\b){_LISTED}{_END}",
    re.IGNORECASE,
)
_LONGEST: Final = re.compile(
    rf"\b{_VERB}\s+the\s+(?:longest|shortest|most\s+detailed|most\s+specific|first|last|middle)\s+"
    r"(?:option|choice|alternative)s?\b",
    re.IGNORECASE,
)


def letter_preference(text: str) -> str | None:
    """The words that prefer an option's letter, place or length, or None.

    >>> letter_preference("If unsure, answer C.")
    'answer C'
    >>> letter_preference("Answer A, B, C or D.") is None
    True
    """
    for pattern in (_PREFERENCE, _TAGGED, _LONGEST):
        found = pattern.search(text[:_MOST])
        if found:
            return " ".join(found[0].split())
    return None


_MOST: Final = 1 << 16
