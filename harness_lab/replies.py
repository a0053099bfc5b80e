"""What a simulated researcher may say: four cases, several wordings each (FB-03).

The texts are fixed, so none of them can hold an option, an identifier or a number of any reference. Must not
know who picks one.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from broker.record import EpisodeRecord
from verifier.task import Verdict


class ReplyCase(StrEnum):
    """The four cases, in the order in which they are tried."""

    ACCEPTED = "accepted"
    INVALID_FORMAT = "invalid_format"
    TOOL_FAILED = "tool_failed"
    RECONSIDER = "reconsider"


WORDINGS: Final[Mapping[ReplyCase, tuple[str, ...]]] = {
    ReplyCase.ACCEPTED: (
        "Thank you, I accept this answer.",
        "That settles my question, thank you.",
        "Good, this is what I needed.",
    ),
    ReplyCase.INVALID_FORMAT: (
        "I cannot read an answer here. Please give one answer in <answer></answer> tags, as I asked for.",
        "The form is not what I asked for: one pair of <answer></answer> tags with only the answer inside.",
        "Please repeat your answer inside one pair of <answer></answer> tags, without other text in it.",
    ),
    ReplyCase.TOOL_FAILED: (
        "Your last piece of code ended in an error. Please look at that error and check your answer again.",
        "The last tool call failed, so I do not trust this answer. Please repair the call and answer again.",
        "Please fix the code that failed and then tell me what you find.",
    ),
    ReplyCase.RECONSIDER: (
        "I am not convinced. Please check the evidence and reconsider your answer.",
        "Please look at this once more and tell me what your answer rests on.",
        "I doubt this answer. Please go back to the data and check it.",
    ),
}


def reply_case(record: EpisodeRecord, verdict: Verdict) -> ReplyCase:
    """The first case that applies to the submission at the end of `record`."""
    if verdict.correct:
        return ReplyCase.ACCEPTED
    if not verdict.format_valid:
        return ReplyCase.INVALID_FORMAT
    if record.tool_calls and record.tool_calls[-1].error:
        return ReplyCase.TOOL_FAILED
    return ReplyCase.RECONSIDER


def case_of(reply: str) -> ReplyCase | None:
    """The case that a reply's words belong to; public knowledge, for the words are fixed."""
    return next((case for case, wordings in WORDINGS.items() if reply in wordings), None)
