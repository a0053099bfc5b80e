"""What a rule may see in one interaction: symptoms, by the public record alone.

Each takes an interaction and one of its citable observations. Must not know what is done about them.
"""

import re
from collections.abc import Iterator
from typing import Final

from broker.record import StopReason, ToolCall
from harness_lab.evidence import EvidenceItem, Interaction
from harness_lab.replies import ReplyCase, case_of

_GUESSED: Final = re.compile(
    r"\b(?:FileNotFoundError|KeyError|ParserError|EmptyDataError|UsecolsError|not in index|no such column|"
    r"Usecols do not match)\b"
)
"""Errors of code that names a file or a column which is not there."""


def unreadable(interaction: Interaction, item: EvidenceItem) -> bool:
    """No readable answer: a wrong form, or an end without one."""
    if item.kind == "correction":
        return case_of(item.quote) is ReplyCase.INVALID_FORMAT
    return item.kind == "unfinished"


def unsupported(interaction: Interaction, item: EvidenceItem) -> bool:
    """The answer came before any look-up that gave something."""
    return item.kind in ("correction", "unfinished") and not any(
        call.stdout.strip() and not call.error for call in interaction.record.tool_calls
    )


def cut_off(interaction: Interaction, item: EvidenceItem) -> bool:
    return item.kind == "unfinished" and interaction.record.stop_reason in (
        StopReason.OUTPUT_TRUNCATED,
        StopReason.MODEL_CALL_BUDGET,
        StopReason.CONTEXT_BUDGET,
    )


def tool_failed(interaction: Interaction, item: EvidenceItem) -> bool:
    return item.kind == "tool_error"


def misread(interaction: Interaction, item: EvidenceItem) -> bool:
    """A readable answer was doubted although a look-up had given rows."""
    return (
        item.kind == "correction"
        and case_of(item.quote) is ReplyCase.RECONSIDER
        and any(call.stdout.strip() for call in interaction.record.tool_calls)
    )


def out_of_calls(interaction: Interaction, item: EvidenceItem) -> bool:
    """The model was still working with its tools when the calls ran out."""
    ends = (StopReason.MODEL_CALL_BUDGET, StopReason.TOOL_CALL_BUDGET, StopReason.NO_SUBMISSION)
    return item.kind == "unfinished" and interaction.record.stop_reason in ends and any(_own(interaction))


def names_guessed(interaction: Interaction, item: EvidenceItem) -> bool:
    """The model's code named a table or a column that is not there."""
    return item.kind == "tool_error" and _GUESSED.search(item.quote) is not None


def nothing_printed(interaction: Interaction, item: EvidenceItem) -> bool:
    """The model ran code whose result it never saw."""
    return any(not call.stdout.strip() and not call.error for call in _own(interaction))


def context_full(interaction: Interaction, item: EvidenceItem) -> bool:
    """The conversation outgrew the context."""
    return (
        item.kind == "unfinished"
        and interaction.record.stop_reason is StopReason.CONTEXT_BUDGET
        and len(interaction.record.model_calls) > 1
    )


def code_too_slow(interaction: Interaction, item: EvidenceItem) -> bool:
    """Code was stopped at its time limit."""
    return item.kind == "unfinished" and interaction.record.stop_reason is StopReason.TOOL_TIMEOUT


def several_answers(interaction: Interaction, item: EvidenceItem) -> bool:
    """A text gave more than one answer and could not be read for that."""
    return (
        item.kind == "correction"
        and case_of(item.quote) is ReplyCase.INVALID_FORMAT
        and any(submission.text.count("</answer>") > 1 for submission in interaction.record.submissions)
    )


def nothing_found(interaction: Interaction, item: EvidenceItem) -> bool:
    """The program's own look-up, before any model call, found no row."""
    return any(
        call.after_model_call < 0 and not call.stdout.strip() and not call.error
        for call in interaction.record.tool_calls
    )


def output_cut(interaction: Interaction, item: EvidenceItem) -> bool:
    """The model's code printed more than can be shown."""
    return any(call.output_truncated for call in _own(interaction))


def _own(interaction: Interaction) -> Iterator[ToolCall]:
    """Tool calls that the model asked for, as far as the record tells: those after its first text."""
    return (call for call in interaction.record.tool_calls if call.after_model_call >= 0)
