"""The checks of a rubric's criteria: declarative ones, and the two that somebody else answers.

| kind       | fields                            | v                                                    |
|------------|-----------------------------------|------------------------------------------------------|
| `answer`   |                                   | 1 if the answer is the reference's, else 0           |
| `contains` | `texts`, `within`                 | share of the texts that occur (case, space aside)    |
| `pattern`  | `pattern`, `within`               | 1 if the expression matches in a line, else 0        |
| `number`   | `at_least`, `at_most`, `after`, `within` | 1 if the first number is in the range         |
| `script`   | `key`                             | the script's reward under the key; without, the mean |
| `judge`    |                                   | what the judge model says of the description         |

`within` is `answer` (between the tags, the default) or `text` (all of the submission). A declarative check
never raises on any text and its time is bounded. Nothing here runs code of a rubric. Uses no pydantic.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, cast

from verifier.answers import normalise
from verifier.safe_pattern import unsafe

Within = Literal["answer", "text"]
MAX_LINE: Final = 300
MAX_LINES: Final = 100
"""A pattern sees so much of a text. Of what `safe_pattern` allows, `a*a*b` is the slowest on it."""
_NUMBER: Final = re.compile(
    r"(?<![\w.])[+\-\u2212]?(?:\d{1,3}(?:,\d{3})+|\d{1,300})(?:\.\d{1,300})?(?:[eE][+-]?\d{1,3})?"
)


MAX_TEXT: Final = 100_000


class RubricError(Exception):
    """A rubric is malformed, or a satisfaction is no share. One line, without the rubric's content."""


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    kind: ClassVar = "answer"


@dataclass(frozen=True, slots=True)
class ContainsCheck:
    kind: ClassVar = "contains"
    texts: tuple[str, ...]
    within: Within = "answer"


@dataclass(frozen=True, slots=True)
class PatternCheck:
    kind: ClassVar = "pattern"
    pattern: str
    within: Within = "answer"


@dataclass(frozen=True, slots=True)
class NumberCheck:
    kind: ClassVar = "number"
    at_least: float = -math.inf
    at_most: float = math.inf
    after: str = ""
    """A label; the first number behind its first occurrence counts. Empty: the first number of all."""
    within: Within = "answer"


@dataclass(frozen=True, slots=True)
class ScriptCheck:
    kind: ClassVar = "script"
    key: str = ""
    """Of reward.json; empty: the mean over all keys."""


@dataclass(frozen=True, slots=True)
class JudgeCheck:
    kind: ClassVar = "judge"


Check = AnswerCheck | ContainsCheck | PatternCheck | NumberCheck | ScriptCheck | JudgeCheck
_KINDS: Final = ("answer", "contains", "judge", "number", "pattern", "script")


def measure(check: ContainsCheck | PatternCheck | NumberCheck, content: str, text: str) -> float:
    """v in [0, 1] of a declarative check. `content` is between the tags, `text` the whole submission."""
    seen = content if check.within == "answer" else text
    match check:
        case ContainsCheck(texts):
            folded = normalise(seen)
            return sum(normalise(wanted) in folded for wanted in texts) / len(texts)
        case PatternCheck(pattern):
            return 1.0 if _matches(re.compile(pattern), seen) else 0.0
        case NumberCheck():
            value = _first_number(seen, check.after)
            return 1.0 if value is not None and check.at_least <= value <= check.at_most else 0.0


def _matches(pattern: re.Pattern[str], text: str) -> bool:
    lines = text[:MAX_TEXT].splitlines()[:MAX_LINES]
    return any(pattern.search(line[:MAX_LINE]) for line in lines)


def _first_number(text: str, label: str) -> float | None:
    seen = text[:MAX_TEXT]
    if label:
        place = re.search(re.escape(label), seen, re.IGNORECASE)
        if place is None:
            return None
        seen = seen[place.end() :]
    found = _NUMBER.search(seen)
    if found is None:
        return None
    value = float(found[0].replace(",", "").replace("\u2212", "-"))
    return value if math.isfinite(value) else None


def read_check(plain: object, where: str) -> Check:
    """Raises RubricError naming the criterion's number and the field."""
    known: Any = plain if isinstance(plain, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]
    match known.get("kind"):
        case "answer":
            fields_of(known, where, {"kind"}, set())
            return AnswerCheck()
        case "judge":
            fields_of(known, where, {"kind"}, set())
            return JudgeCheck()
        case "script":
            fields = fields_of(known, where, {"kind"}, {"key"})
            return ScriptCheck(text_field(fields, "key", where) if "key" in fields else "")
        case "contains":
            fields = fields_of(known, where, {"kind", "texts"}, {"within"})
            return ContainsCheck(_texts(fields["texts"], where), _within(fields, where))
        case "pattern":
            fields = fields_of(known, where, {"kind", "pattern"}, {"within"})
            pattern = text_field(fields, "pattern", where)
            if why := unsafe(pattern):
                raise RubricError(f"{where}: {why}")
            return PatternCheck(pattern, _within(fields, where))
        case "number":
            return _read_number(known, where)
        case _:
            raise RubricError(f"{where}: a check has a kind: {', '.join(_KINDS)}")


def _read_number(plain: object, where: str) -> NumberCheck:
    fields = fields_of(plain, where, {"kind"}, {"at_least", "at_most", "after", "within"})
    ends = {name: fields[name] for name in ("at_least", "at_most") if name in fields}
    for name, value in ends.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RubricError(f"{where}: {name} is a finite number")
    if not ends or ends.get("at_least", -math.inf) > ends.get("at_most", math.inf):
        raise RubricError(f"{where}: a number check has at_least, at_most or both, the smaller one first")
    after = text_field(fields, "after", where) if "after" in fields else ""
    return NumberCheck(**{k: float(v) for k, v in ends.items()}, after=after, within=_within(fields, where))


def _texts(value: object, where: str) -> tuple[str, ...]:
    texts = cast("list[Any]", value) if isinstance(value, list) else []
    if not texts or not all(isinstance(text, str) and normalise(text) for text in texts):
        raise RubricError(f"{where}: texts is a list of texts, at least one, none empty")
    return tuple(texts)


def _within(fields: Mapping[str, Any], where: str) -> Within:
    value = fields.get("within", "answer")
    if value not in ("answer", "text"):
        raise RubricError(f"{where}: within is answer or text")
    return value


def fields_of(plain: object, where: str, needed: set[str], optional: set[str]) -> dict[str, Any]:
    """The fields of a JSON object with exactly these names. Raises RubricError."""
    if not isinstance(plain, Mapping):
        raise RubricError(f"{where} is an object")
    fields = cast("Mapping[str, Any]", plain)
    if missing := sorted(needed - fields.keys()):
        raise RubricError(f"{where}: {missing[0]} is missing")
    if extra := sorted(fields.keys() - needed - optional):
        raise RubricError(f"{where}: unknown field {str(extra[0])[:40]!r}")
    return dict(fields)


def text_field(fields: Mapping[str, Any], name: str, where: str) -> str:
    """A field that holds text, not only white space. Raises RubricError."""
    value = fields[name]
    if not isinstance(value, str) or not value.strip():
        raise RubricError(f"{where}: {name} is a text that is not empty")
    return value
