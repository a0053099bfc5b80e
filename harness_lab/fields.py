"""Public fields by address, from an offset (PROP-04). One grammar, for interpreters and improvers alike.

    address = root { "/" step }
    root    = "program" | "inventory" | "budgets" | "history" | "evidence" | "episode"
    step    = a name, or the place of an entry in a list, from 0

    episode/2/question                 the question, as the model saw it
    episode/2/call/3/prompt            the messages of a model call, as text; `messages` has them apart
    episode/2/call/3/text              what the model said
    episode/2/tool/0/code              and stdout, error, output_truncated, seconds
    episode/2/submission/0/text        and reply: what the researcher said to it
    episode/2/annotation/0/hint        a reading of a reply: a hypothesis (FB-07)
    episode/2/stop_reason              and every other field of the public record
    history/0/tried/1/outcome          what became of an earlier candidate

Where one episode alone is at hand, its number is left out: `episode/call/3/text`. An address that names a
list or an object gives its JSON. Public by construction: the tree is made from the types that evidence may
hold. Not in it: a task's origin, licence and mark, which nothing that was shown to the model held either.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from broker.record import ModelCall
from harness_lab.annotation import Annotation
from harness_lab.evidence import EvidenceBundle, Interaction

LONGEST_ADDRESS: Final = 200
_QUESTION_FIELDS: Final = (
    "family",
    "subtopic",
    "options",
    "answer_format",
    "files",
    "checked_by",
    "surroundings",
)
_OWN_NAMES: Final = frozenset({"model_calls", "tool_calls", "submissions"})
_NAMES_SHOWN: Final = 24

Root = Callable[[], Any]


class UnknownField(KeyError):
    """No public field has this address; one line that says which step is wrong and what there is."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Reading:
    """A part of one field."""

    address: str
    offset: int
    text: str
    left: int
    """Characters that follow."""


class Fields:
    """A tree of public values. Roots are made when they are first read."""

    def __init__(self, roots: Mapping[str, Root]) -> None:
        self._roots = dict(roots)
        self._made: dict[str, Any] = {}

    def read(self, address: str, offset: int = 0, length: int = 6000) -> Reading:
        """At most `length` characters of the field from `offset`. Raises UnknownField."""
        text = self.text(address)
        if not 0 <= offset <= len(text):
            raise UnknownField(f"{address} has {len(text)} characters, there is no offset {offset}")
        part = text[offset : offset + length]
        return Reading(address, offset, part, len(text) - offset - len(part))

    def text(self, address: str) -> str:
        """The whole field: a text as it is, anything else as JSON. Raises UnknownField."""
        value = self._value(address)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def addresses(self) -> tuple[str, ...]:
        """Every field that is neither a list nor an object, in order. For tests and for people."""
        return tuple(found for root in self._roots for found in _leaves(root, self._root(root)))

    def _value(self, address: str) -> Any:
        if len(address) > LONGEST_ADDRESS:
            raise UnknownField(f"an address has at most {LONGEST_ADDRESS} characters")
        root, *steps = address.split("/")
        if root not in self._roots:
            raise UnknownField(f"{root!r} is no field: there are {', '.join(self._roots)}")
        value, path = self._root(root), root
        for step in steps:
            value, path = _step(value, step, path), f"{path}/{step}"
        return value

    def _root(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._roots[name]()
        return self._made[name]


def bundle_fields(bundle: EvidenceBundle) -> dict[str, Root]:
    """The roots that a bundle gives: `episode` by number, and `evidence`."""
    return {
        "episode": lambda: [
            episode_tree(item, f"episode/{number}") for number, item in enumerate(bundle.interactions)
        ],
        "evidence": lambda: [item.model_dump(mode="json") for item in bundle.items],
    }


def episode_tree(interaction: Interaction, path: str = "episode") -> dict[str, Any]:
    """Everything public of one interaction under the names of the grammar; `path` is its own address."""
    task, record = interaction.task, interaction.record
    rest = record.model_dump(mode="json", exclude=set(_OWN_NAMES))
    return {
        "question": task.prompt,
        **task.model_dump(mode="json", include=set(_QUESTION_FIELDS)),
        "call": [_call(call) for call in record.model_calls],
        "tool": [call.model_dump(mode="json") for call in record.tool_calls],
        "submission": [item.model_dump(mode="json") for item in record.submissions],
        "reply": [item.model_dump(mode="json") for item in interaction.given],
        "annotation": [{"to_reply": place, **located(note, path)} for place, note in interaction.annotations],
        "dropped_annotation": list(interaction.dropped_annotations),
        **rest,
    }


def located(note: Annotation, path: str) -> dict[str, Any]:
    """An annotation whose addresses begin with the episode's own address."""
    fields = [path + field.removeprefix("episode") for field in note.fields]
    return {**note.model_dump(mode="json"), "fields": fields}


def _call(call: ModelCall) -> dict[str, Any]:
    prompt = "\n".join(f"[{message.role}] {message.content}" for message in call.messages)
    return {"prompt": prompt, **call.model_dump(mode="json")}


def _step(value: Any, step: str, path: str) -> Any:
    if isinstance(value, Mapping):
        known = cast("Mapping[str, Any]", value)
        if step not in known:
            names = [str(name) for name in list(known)[:_NAMES_SHOWN]]
            raise UnknownField(f"{path} has no {step!r}: it has {', '.join(names) or 'nothing'}")
        return known[step]
    if isinstance(value, list):
        entries = cast("Sequence[Any]", value)
        # isdecimal, so that neither a sign nor another script's digit passes.
        if not (step.isascii() and step.isdecimal()) or int(step) >= len(entries):
            have = f"0 to {len(entries) - 1}" if entries else "none"
            raise UnknownField(f"{path} has no entry {step!r}: it has {have}")
        return entries[int(step)]
    raise UnknownField(f"{path} is a single value, {step!r} is nothing in it")


def _leaves(path: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value).items()
        return [leaf for name, item in inner for leaf in _leaves(f"{path}/{name}", item)] or [path]
    if isinstance(value, list):
        entries = enumerate(cast("Sequence[Any]", value))
        return [leaf for place, item in entries for leaf in _leaves(f"{path}/{place}", item)] or [path]
    return [path]
