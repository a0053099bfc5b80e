"""What a program may hand to `api.generate`, and how the host verifies where each text came from (HOST-04).

A message is a mapping with `role` and `content` (text) and perhaps `source`; other keys are dropped.

| source   | roles                   | the host verifies                                     |
|----------|-------------------------|-------------------------------------------------------|
| task     | user                    | equals the task's prompt                              |
| feedback | user                    | equals a reply that the host issued in this episode   |
| model    | assistant               | is contained in a completion recorded in this episode |
| tool     | user, tool              | some tool call was made; its text may be summarised   |
| harness  | system, user, assistant | nothing: it is the program's own, marked text         |

A missing source is read from the role: system is harness, assistant is model, tool is tool; a user text
that equals the prompt is task, one that equals a reply is feedback, one that starts with "Observation:"
is tool, and any other must be marked. An invented assistant turn (an example) is allowed when marked
harness. A program that wants rows and question in one turn may put the prompt, which is public, inside a
harness message; whatever part of a harness or model message repeats an observation counts as tool text all
the same (`broker/provenance.py`).

What comes here is hostile: anything but a list of messages is a `HarnessError` in one short line, and the
cost is bounded by the size of a frame.

Must not know budgets, tokens or sandboxes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from broker.errors import HarnessError
from broker.provenance import ToolText
from broker.record import Message, Source

LEGACY_TOOL_PREFIX: Final = "Observation:"
MAX_MESSAGES: Final = 1_024
_LEGAL: Final[Mapping[str, frozenset[str]]] = {
    "system": frozenset({"harness"}),
    "user": frozenset({"task", "feedback", "harness", "tool"}),
    "assistant": frozenset({"model", "harness"}),
    "tool": frozenset({"tool"}),
}


@dataclass
class Ledger:
    """What the host itself issued or recorded in one episode: the ground for every check."""

    prompt: str
    guidance: str
    public: tuple[str, ...] = ()
    """Further texts that the host itself gives to every program."""
    completions: list[str] = field(default_factory=list[str])
    replies: list[str] = field(default_factory=list[str])
    tool_calls: int = 0
    tool_text: ToolText = field(init=False)

    def __post_init__(self) -> None:
        self.tool_text = ToolText((self.prompt, self.guidance, *self.public))

    def add_completion(self, text: str) -> None:
        self.completions.append(text)
        self.tool_text.add_completion(text)

    def add_observation(self, stdout: str, error: str) -> None:
        self.tool_calls += 1
        self.tool_text.add(stdout)
        self.tool_text.add(error)


def read_messages(raw: Any, ledger: Ledger) -> tuple[Message, ...]:
    """Verified messages. Raises `HarnessError` of kind protocol or forged_provenance, naming the message."""
    if not isinstance(raw, list) or not raw:
        raise HarnessError("protocol", "api.generate needs a non-empty list of messages")
    items = cast("list[Any]", raw)
    if len(items) > MAX_MESSAGES:
        raise HarnessError("protocol", f"{len(items)} messages are more than {MAX_MESSAGES}")
    return tuple(_read_message(index, item, ledger) for index, item in enumerate(items))


def _read_message(index: int, item: Any, ledger: Ledger) -> Message:
    if not isinstance(item, dict):
        raise HarnessError("protocol", f"message {index} is not a mapping with role and content")
    fields = cast("dict[str, Any]", item)
    role, content, source = fields.get("role"), fields.get("content"), fields.get("source")
    if not isinstance(role, str) or role not in _LEGAL:
        raise HarnessError(
            "protocol", f"message {index} has the role {_named(role)}, not one of {', '.join(_LEGAL)}"
        )
    if not isinstance(content, str) or not _is_unicode(content):
        raise HarnessError("protocol", f"the content of message {index} is not text")
    if source is None:
        source = _default_source(index, role, content, ledger)
    elif not isinstance(source, str) or source not in _LEGAL[role]:
        legal = ", ".join(sorted(_LEGAL[role]))
        raise HarnessError(
            "protocol", f"message {index}: the role {role} may have the source {legal}, not {_named(source)}"
        )
    _verify(index, source, content, ledger)
    return Message(role=cast("Any", role), content=content, source=cast("Source", source))


def _named(value: Any) -> str:
    """A value in an error message: text in short, anything else by its type."""
    return repr(value[:40]) if isinstance(value, str) else f"of type {type(value).__name__}"


def _is_unicode(text: str) -> bool:
    """False for a text with half of a surrogate pair, which has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _default_source(index: int, role: str, content: str, ledger: Ledger) -> str:
    if role != "user":
        return {"system": "harness", "assistant": "model", "tool": "tool"}[role]
    if content == ledger.prompt:
        return "task"
    if content in ledger.replies:
        return "feedback"
    if content.startswith(LEGACY_TOOL_PREFIX) and ledger.tool_calls:
        return "tool"
    raise HarnessError(
        "protocol",
        f"user message {index} names no source and is neither the task's prompt nor a reply: "
        "mark it with source harness or tool",
    )


def _verify(index: int, source: str, content: str, ledger: Ledger) -> None:
    match source:
        case "task" if content != ledger.prompt:
            problem = "is marked task but is not the task's prompt"
        case "feedback" if content not in ledger.replies:
            problem = "is marked feedback but no such reply was given"
        case "model" if not _was_generated(content, ledger):
            problem = (
                "counts as the model's text but no completion contains it (an example needs source harness)"
            )
        case "tool" if not ledger.tool_calls:
            problem = "is marked tool but no tool call was made"
        case _:
            return
    raise HarnessError("forged_provenance", f"message {index} {problem}")


def _was_generated(content: str, ledger: Ledger) -> bool:
    # Trimming white space at the ends is a program's ordinary habit.
    text = content.strip()
    return any(text in completion for completion in ledger.completions)
