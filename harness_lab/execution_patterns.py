"""How a program's Train interactions went, counted by family: forms, errors, calls, budgets hit (PROP-03).

Computed from interactions alone, so that it holds nothing that evidence does not hold: whether a form was
valid is read off the researcher's words. Must not know verdicts, Val or Test.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from broker.record import StopReason
from harness_lab.evidence import Interaction
from harness_lab.replies import ReplyCase, case_of

ALL: Final = "all"
_BUDGETS: Final = frozenset(
    {
        StopReason.MODEL_CALL_BUDGET,
        StopReason.TOOL_CALL_BUDGET,
        StopReason.TOOL_TIMEOUT,
        StopReason.TIME_BUDGET,
        StopReason.CONTEXT_BUDGET,
        StopReason.OUTPUT_TRUNCATED,
        StopReason.OUT_OF_MEMORY,
    }
)
_ERROR_CLASS: Final = re.compile(r"^([A-Za-z_][\w.]{0,60})(?::|$)")
_MOST_CLASSES: Final = 8

Form = Literal["valid", "invalid", "none"]
_FORMS: Final[tuple[Form, ...]] = ("valid", "invalid", "none")


class Calls(BaseModel):
    """Of one kind, per episode."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float
    most: int


class Patterns(BaseModel):
    """The counts of one family, or of all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episodes: int
    first_answer: dict[Form, int]
    """Whether the first submission could be read; `none`: nothing was submitted."""
    accepted: int
    """Episodes in which some submission was accepted."""
    model_calls: Calls
    tool_calls: Calls
    tool_errors: dict[str, int]
    """By the class that the last line of the error names; the most frequent ones."""
    crashes: dict[str, int]
    """Of the program itself, likewise."""
    stop_reasons: dict[str, int]
    budgets_hit: dict[str, int]
    """Those of the stop reasons that are a budget."""


def execution_patterns(interactions: Sequence[Interaction]) -> dict[str, Patterns]:
    """Counts by family, in order of name, after those of `all`."""
    families = sorted({item.task.family for item in interactions})
    return {
        ALL: _patterns(interactions),
        **{name: _patterns([item for item in interactions if item.task.family == name]) for name in families},
    }


def _patterns(interactions: Sequence[Interaction]) -> Patterns:
    records = [item.record for item in interactions]
    stops = Counter(record.stop_reason for record in records)
    forms = [first_form(item) for item in interactions]
    return Patterns(
        episodes=len(records),
        first_answer={form: forms.count(form) for form in _FORMS},
        accepted=sum(item.accepted for item in interactions),
        model_calls=_calls([len(record.model_calls) for record in records]),
        tool_calls=_calls([len(record.tool_calls) for record in records]),
        tool_errors=_classes(call.error for record in records for call in record.tool_calls if call.error),
        crashes=_classes(record.error.message for record in records if record.error is not None),
        stop_reasons={stop.value: count for stop, count in stops.most_common()},
        budgets_hit={stop.value: count for stop, count in stops.most_common() if stop in _BUDGETS},
    )


def first_form(interaction: Interaction) -> Form:
    """Of the first submission, as the first reply tells; a submission without a reply counts as valid."""
    if not interaction.record.submissions:
        return "none"
    first = next((reply.text for reply in interaction.given if reply.submission == 0), "")
    return "invalid" if case_of(first) is ReplyCase.INVALID_FORMAT else "valid"


def _calls(counts: Sequence[int]) -> Calls:
    return Calls(mean=round(sum(counts) / max(1, len(counts)), 2), most=max(counts, default=0))


def _classes(errors: Iterable[str]) -> dict[str, int]:
    return dict(Counter(map(error_class, errors)).most_common(_MOST_CLASSES))


def error_class(error: str) -> str:
    """The exception that an error's last line names, or `other`.

    >>> error_class("Traceback\\n  File 1\\npandas.errors.ParserError: bad line")
    'ParserError'
    """
    lines = error.strip().splitlines()
    found = _ERROR_CLASS.match(lines[-1].strip()) if lines else None
    return found[1].rpartition(".")[2] if found else "other"
