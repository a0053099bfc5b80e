"""From what a chat model said to the one JSON object that was asked for, in bounded time.

Models put JSON into fences, prose, a wrapper of their own, a list of one, or a text that holds JSON, and some
think aloud before it. All of that is undone; nothing is repaired inside an object. Must not know what is
asked.
"""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Final, cast

MAX_STARTS: Final = 200
"""Opening braces that are tried; a text of braces alone must not cost the host more."""
_MAX_WRAPPERS: Final = 3
_THOUGHT_END: Final = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_FENCE: Final = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)```", re.DOTALL)


class AuxiliaryError(Exception):
    """The auxiliary model is down, or what it said cannot be used. One line."""


def read_object(text: str, wanted: Collection[str] = ()) -> dict[str, Any]:
    """The object with one of the wanted keys, or else the first object. Raises AuxiliaryError without any.

    >>> read_object('<think>{"no": 1}</think> Sure: {"reply": 1} ok')
    {'reply': 1}
    >>> read_object('An example is {"a": 1}. Mine: {"answer": {"reply": 2}}', ["reply"])
    {'reply': 2}
    """
    first: dict[str, Any] | None = None
    for found in _objects(text):
        inner = _unwrapped(found, wanted)
        if not wanted or any(key in inner for key in wanted):
            return inner
        first = inner if first is None else first
    if first is None:
        raise AuxiliaryError("the auxiliary's reply holds no JSON object")
    return first


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Objects after the thoughts, those of fenced blocks first, and then those of the whole text."""
    # Some templates open the thought in the prompt, so only its end is looked for. A program may hold such a
    # tag as well: then what follows it is no whole object, and the whole text gives it.
    end = _THOUGHT_END.search(text)
    spoken = text[end.end() :] if end else text
    left = MAX_STARTS
    for part in (*_FENCE.findall(spoken), spoken, *([text] if end else [])):
        place = 0
        while left > 0 and (start := part.find("{", place)) >= 0:
            left -= 1
            try:
                value, place = json.JSONDecoder().raw_decode(part, start)
            except (ValueError, RecursionError):
                place = start + 1
                continue
            yield cast("dict[str, Any]", value)


def _unwrapped(found: dict[str, Any], wanted: Collection[str]) -> dict[str, Any]:
    """The object inside single-key wrappers, where the wrapper itself has none of the wanted keys."""
    for _ in range(_MAX_WRAPPERS):
        if not wanted or len(found) != 1:
            break
        [value] = found.values()
        inner = _as_object(value)
        if inner is None or (any(key in found for key in wanted) and not any(key in inner for key in wanted)):
            break
        found = inner
    return found


def _as_object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        [value] = cast("list[Any]", value)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
