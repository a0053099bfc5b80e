"""Evidence: what a proposal may rest on (EVID-01..04). Frozen, and public by type.

It is built from the public task, the public record, the given replies and valid annotations; no constructor
here takes a verdict, a reference or a Val or Test episode. A bundle's labels must be {public}: by type, and
once more by the exact type of every part when it is made and when it is serialised (`labels.py`).
Interpretations stay marked as hypotheses (FB-07).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
    model_validator,
)

from broker.record import EpisodeRecord, StopReason
from harness_lab.annotation import Annotation
from harness_lab.feedback import GivenReply
from harness_lab.labels import Label, require_public
from verifier.task import Task

EARLIER_TROUBLED: Final = 12
EARLIER_ACCEPTED: Final = 4
_QUOTE: Final = 600
_ORDINARY_ENDS: Final = frozenset({StopReason.FIRST_ANSWER, StopReason.ACCEPTED, StopReason.PROGRAM_ENDED})


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interaction(_Frozen):
    """One finished interaction, its public half."""

    label: ClassVar[Label] = "public"

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

    label: ClassVar[Label] = "public"

    kind: Literal["correction", "tool_error", "unfinished", "crash"]
    quote: str


class EvidenceItem(_Frozen):
    """A citable observation. Its id is `e{record}:{n}`, unique within one bundle."""

    label: ClassVar[Label] = "public"

    id: str
    task_id: str
    kind: Literal["correction", "tool_error", "unfinished", "crash"]
    quote: str


class EvidenceBundle(_Frozen):
    """What one step's proposals see. Raises PrivateData when a part is not public."""

    label: ClassVar[Label] = "public"

    labels: frozenset[Literal["public"]] = frozenset({"public"})
    """All labels of all parts; no other can be written down."""
    interactions: tuple[Interaction, ...]
    """Earlier ones of the phase first, then all of the current step."""
    items: tuple[EvidenceItem, ...]

    @model_validator(mode="after")
    def _made_of_public_parts(self) -> Self:
        require_public(self)
        return self

    @model_serializer(mode="wrap")
    def _leaves_public(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Once more here, for a model can be made or changed past its validation.
        require_public(self)
        return write(self)

    @field_serializer("labels")
    def _sorted(self, labels: frozenset[str]) -> list[str]:
        return sorted(labels)

    def artifact(self, sources: Sequence[tuple[str, int]]) -> dict[str, Any]:
        """The body of its record: `sources` says which record holds each interaction, and at which place."""
        require_public(self)
        if len(sources) != len(self.interactions):
            raise ValueError("a bundle's record needs one source for each interaction")
        return {
            "labels": sorted(self.labels),
            "interactions": [
                {"record": record, "place": place, "task": interaction.task.id}
                for (record, place), interaction in zip(sources, self.interactions, strict=True)
            ],
            "items": [item.model_dump(mode="json") for item in self.items],
        }

    def items_of(self, record: int) -> tuple[EvidenceItem, ...]:
        """The citable items of one interaction, by its place in the bundle."""
        return tuple(item for item in self.items if item.id.startswith(f"e{record}:"))

    def citation_problem(self, ids: Sequence[str]) -> str | None:
        """Why these ids do not support a proposal (PROP-06), or None."""
        known = {item.id: item.task_id for item in self.items}
        unknown = [item for item in ids if item not in known]
        if unknown:
            return f"unknown evidence id {str(unknown[0])[:40]!r}"
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
    require_public((*earlier, *current))
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
