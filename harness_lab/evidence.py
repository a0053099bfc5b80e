"""Evidence: what a proposal may rest on (EVID-01..04). Frozen, and public by type.

It is built from the public task, the public record, the given replies and valid annotations; no constructor
here takes a verdict, a reference or a Val or Test episode. Interpretations stay marked as hypotheses (FB-07).
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from broker.record import EpisodeRecord, StopReason
from harness_lab.annotation import Annotation
from harness_lab.feedback import GivenReply
from verifier.task import Task

EARLIER_TROUBLED: Final = 12
EARLIER_ACCEPTED: Final = 4
_QUOTE: Final = 600
_ORDINARY_ENDS: Final = frozenset({StopReason.FIRST_ANSWER, StopReason.ACCEPTED, StopReason.PROGRAM_ENDED})


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interaction(_Frozen):
    """One finished interaction, its public half."""

    task: Task
    record: EpisodeRecord
    given: tuple[GivenReply, ...]
    annotations: tuple[tuple[int, Annotation], ...] = ()
    """A reply's place in `given`, and its reading."""
    dropped_annotations: tuple[str, ...] = ()
    """Why annotations were dropped; counted in reports (FB-06)."""

    @property
    def troubled(self) -> bool:
        """A correction, a failed tool call, a crash or an unfinished end."""
        return bool(observations(self))

    @property
    def accepted(self) -> bool:
        return any(reply.accepted for reply in self.given)


class Observation(_Frozen):
    """One thing that went wrong, in public words."""

    kind: Literal["correction", "tool_error", "unfinished", "crash"]
    quote: str


class EvidenceItem(_Frozen):
    """A citable observation. Its id is `e{record}:{n}`, unique within one bundle."""

    id: str
    task_id: str
    kind: Literal["correction", "tool_error", "unfinished", "crash"]
    quote: str


class EvidenceBundle(_Frozen):
    """What one step's proposals see."""

    interactions: tuple[Interaction, ...]
    """Earlier ones of the phase first, then all of the current step."""
    items: tuple[EvidenceItem, ...]

    def items_of(self, record: int) -> tuple[EvidenceItem, ...]:
        """The citable items of one interaction, by its place in the bundle."""
        return tuple(item for item in self.items if item.id.startswith(f"e{record}:"))

    def citation_problem(self, ids: Sequence[str]) -> str | None:
        """Why these ids do not support a proposal (PROP-06), or None."""
        known = {item.id: item.task_id for item in self.items}
        unknown = [item for item in ids if item not in known]
        if unknown:
            return f"unknown evidence id {unknown[0]!r}"
        if not 2 <= len(set(ids)) <= 4 or len(set(ids)) != len(ids):
            return "a proposal cites two to four different evidence ids"
        if len({known[item] for item in ids}) < 2:
            return "the cited evidence must come from at least two Train tasks"
        return None


def observations(interaction: Interaction) -> tuple[Observation, ...]:
    """Distinct corrections and diagnostics of one interaction, in the order in which they happened."""
    record = interaction.record
    found = [
        Observation(kind="tool_error", quote=_tail(call.error)) for call in record.tool_calls if call.error
    ]
    found += [
        Observation(kind="correction", quote=reply.text) for reply in interaction.given if not reply.accepted
    ]
    if record.error is not None:
        found.append(Observation(kind="crash", quote=_tail(record.error.message)))
    elif record.stop_reason not in _ORDINARY_ENDS:
        found.append(
            Observation(kind="unfinished", quote=f"the episode ended with {record.stop_reason.value}")
        )
    return tuple(dict.fromkeys(found))


def _tail(text: str) -> str:
    # The last lines of a traceback say what happened.
    return text if len(text) <= _QUOTE else "..." + text[-_QUOTE:]


def bundle(earlier: Sequence[Interaction], current: Sequence[Interaction]) -> EvidenceBundle:
    """Join a step's interactions with earlier ones of the phase since the last adoption (EVID-03)."""
    chosen = (*select_earlier(earlier), *current)
    items: list[EvidenceItem] = []
    for number, interaction in enumerate(chosen):
        for place, seen in enumerate(observations(interaction)):
            task_id = interaction.task.id
            items.append(
                EvidenceItem(id=f"e{number}:{place}", task_id=task_id, kind=seen.kind, quote=seen.quote)
            )
    return EvidenceBundle(interactions=chosen, items=tuple(items))


def select_earlier(earlier: Sequence[Interaction]) -> tuple[Interaction, ...]:
    """The last 12 with a correction or failure, then the last 4 accepted without one."""
    troubled = [item for item in earlier if item.troubled]
    accepted = [item for item in earlier if item.accepted and not item.troubled]
    return (*troubled[-EARLIER_TROUBLED:], *accepted[-EARLIER_ACCEPTED:])


def pending_after(
    pending: Iterable[Interaction], current: Iterable[Interaction], *, adopted: bool
) -> tuple[Interaction, ...]:
    """What the next step may still draw on: nothing after an adoption (EVID-04)."""
    return () if adopted else (*pending, *current)
