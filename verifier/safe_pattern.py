"""Which regular expressions may meet a hostile text: those whose time is bounded by their form.

Open repeats are few, none stands within a repeat, nothing refers back to a group. Must not know rubrics.
"""

import re
from importlib import import_module
from typing import Any, Final, cast

# The standard library's own parser; it has no public name.
_PARSER: Final[Any] = import_module("re._parser")
_CODES: Final[Any] = import_module("re._constants")
_REPEATS: Final = (_CODES.MAX_REPEAT, _CODES.MIN_REPEAT, _CODES.POSSESSIVE_REPEAT)
_BACK: Final = (_CODES.GROUPREF, _CODES.GROUPREF_EXISTS)
MAX_PATTERN: Final = 300
MOST_OPEN: Final = 2
OPEN_FROM: Final = 16
"""A repeat of up to so many times counts as closed."""
MOST_CLOSED: Final = 64
"""Ways to share out the closed repeats: their sizes multiply."""


class _Unsafe(Exception):
    pass


def unsafe(pattern: str) -> str:
    """Why the pattern is refused, in one clause; empty when it is safe. Never raises."""
    if len(pattern) > MAX_PATTERN:
        return f"a pattern has at most {MAX_PATTERN} characters"
    try:
        re.compile(pattern)
        open_repeats, closed = _repeats(_PARSER.parse(pattern), within_repeat=False)
    except _Unsafe as error:
        return str(error)
    except (re.error, RecursionError, OverflowError) as error:
        return f"the pattern is no regular expression ({type(error).__name__})"
    if open_repeats > MOST_OPEN:
        return f"the pattern has {open_repeats} open repeats (*, +), at most {MOST_OPEN} are safe"
    if closed > MOST_CLOSED:
        return (
            f"the pattern's closed repeats can be shared out in {closed} ways, at most {MOST_CLOSED} are safe"
        )
    return ""


def _repeats(parsed: Any, *, within_repeat: bool) -> tuple[int, int]:
    """Number of open repeats, and product of the closed ones' sizes."""
    open_repeats, closed = 0, 1
    for name, value in parsed:
        if name in _BACK:
            raise _Unsafe("the pattern refers back to a group, which has no bound on its time")
        repeats = name in _REPEATS and value[1] > 1
        if repeats and within_repeat:
            raise _Unsafe("the pattern has a repeat within a repeat, which has no bound on its time")
        if repeats and value[1] > OPEN_FROM:
            open_repeats += 1
        elif name in _REPEATS:
            closed *= value[1] - value[0] + 1
        for part in _parts(value):
            inner = _repeats(part, within_repeat=within_repeat or repeats)
            open_repeats, closed = open_repeats + inner[0], closed * inner[1]
    return open_repeats, closed


def _parts(value: Any) -> list[Any]:
    """The sub-patterns below one parsed item, whatever its kind."""
    if isinstance(value, _PARSER.SubPattern):
        return [value]
    if isinstance(value, list | tuple):
        return [part for item in cast("list[Any]", value) for part in _parts(item)]
    return []
