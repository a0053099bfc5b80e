"""Interpretations of replies: what is asked, and what of the answer may be kept (FB-05..07).

Built from the public record alone. An annotation that fails a check is dropped and counted; the record and
the reply under it stay. Quotes need not match the record word for word.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from broker.record import EpisodeRecord
from harness_lab.annotation import Annotation, FeedbackType, InterpretationRequest, ToolView
from harness_lab.auxiliary import Auxiliary
from harness_lab.chat import AuxiliaryError
from harness_lab.feedback import GivenReply

_AGREES: Final[Mapping[bool, frozenset[tuple[FeedbackType, int]]]] = {
    True: frozenset({("acceptance", 1)}),
    # A generic "reconsider" does not say what is wrong, so an honest reader may find it ambiguous, or new.
    False: frozenset({("correction", -1), ("new_requirement", 0), ("new_information", 0), ("ambiguous", 0)}),
}

_LONGEST_PROBLEM: Final = 300
"""Characters of a reason; a part of it may be the model's own words."""


def interpretation_request(question: str, record: EpisodeRecord, given: GivenReply) -> InterpretationRequest:
    """The public record up to the submission that `given` answers."""
    submission = record.submissions[given.submission]
    last = submission.after_model_call
    return InterpretationRequest(
        question=question,
        outputs=tuple(call.text for call in record.model_calls if call.index <= last),
        tools=tuple(
            ToolView(code=call.code, stdout=call.stdout, error=call.error)
            for call in record.tool_calls
            if call.after_model_call <= last
        ),
        submission=given.submission,
        answer=submission.text,
        reply=given.text,
    )


def read_annotation(raw: Mapping[str, Any], request: InterpretationRequest, given: GivenReply) -> Annotation:
    """A checked annotation. ValueError, in one line, when structure, addresses or class are wrong (FB-06)."""
    try:
        found = Annotation.model_validate({**raw, "status": "hypothesis"})
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"annotation field {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    unknown = sorted(set(found.fields) - request.addresses())
    if unknown:
        raise ValueError(f"unknown field address {unknown[0]!r}")
    if (found.type, found.reward) not in _AGREES[given.accepted]:
        raise ValueError(
            f"{found.type} with reward {found.reward} does not agree with the reply that was given"
        )
    return found


async def interpret(
    auxiliary: Auxiliary, question: str, record: EpisodeRecord, given: GivenReply
) -> tuple[Annotation | None, str]:
    """The annotation of one reply, or None and why it was dropped. Never raises."""
    request = interpretation_request(question, record, given)
    try:
        return read_annotation(await auxiliary.interpret(request), request, given), ""
    except (AuxiliaryError, ValueError) as error:
        return None, str(error)[:_LONGEST_PROBLEM]
