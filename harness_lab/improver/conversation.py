"""The command loop with a chat improver: read, propose, skip (PROP-04, PROP-05).

At most 3 reads, 2 repairs, 6 replies a candidate; once a proposal was parsed, reads stay closed. What goes
wrong is recorded in the proposal's protocol and ends as a failed attempt; the step goes on (PROP-08). Must
not know how a proposal becomes a program: that is its editor's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from broker.harness import Harness
from harness_lab.chat import AuxiliaryError, ChatEndpoint, ReplyCutOff, Shape, read_object
from harness_lab.improver.base import Proposal, ProposalContext, Skip
from harness_lab.improver.fit import estimated_tokens, fitting
from harness_lab.improver.prompts import digest, render
from harness_lab.improver.view import overview, read_field

READS: Final = 3
REPAIRS: Final = 2
CALLS: Final = 6
TEMPERATURE: Final = 0.7
CONTEXT_TOKENS: Final = 131_072
_LONGEST_REASON: Final = 2000
_COMMANDS: Final = ("read", "propose", "skip")
_TEXTS: Final = ("hypothesis", "rationale")


class NotAccepted(Exception):
    """A proposal that the host refuses; one line that says what to change."""


class Editor(Protocol):
    """What a proposal holds, and how it becomes a program."""

    kind: str
    """Names it in the improver's identity."""
    fields: Mapping[str, Mapping[str, Any]]
    """JSON schemas of the proposal's own fields."""

    def system(self) -> str:
        """The first message to the model."""
        ...

    def scopes(self, context: ProposalContext) -> tuple[str, ...]: ...

    def unfit(self, parent: Harness) -> str | None:
        """Why this parent cannot be edited in this way, or None."""
        ...

    def build(self, command: Mapping[str, Any], parent: Harness, context: ProposalContext) -> str:
        """The candidate's text. Raises NotAccepted."""
        ...


@dataclass
class _Protocol:
    """What happened on the way to one candidate."""

    calls: int = 0
    reads: int = 0
    repairs: int = 0
    parsed: bool = False
    """A proposal was parsed once, so reads are closed."""
    problems: list[str] = field(default_factory=list[str])
    said: list[str] = field(default_factory=list[str])

    def record(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "reads": self.reads,
            "repairs": self.repairs,
            "problems": self.problems,
            "said": self.said,
        }


class ConversingImprover:
    """One fixed chat model and one editor."""

    def __init__(self, endpoint: ChatEndpoint, editor: Editor, context_tokens: int = CONTEXT_TOKENS) -> None:
        self._endpoint, self._editor = endpoint, editor
        self._room = max(512, context_tokens - endpoint.max_tokens)
        """Tokens of everything that one request sends."""
        self._shape = _shape(editor)
        self.identity = f"{editor.kind}/2:{digest()}:{context_tokens}:{endpoint.identity}"

    async def propose(
        self, parent: Harness, context: ProposalContext, index: int, count: int
    ) -> Proposal | Skip:
        """Never raises for what the model says or for a dead endpoint."""
        if (unfit := self._editor.unfit(parent)) is not None:
            return Skip(kind="failed", reason=unfit)
        turn = _Turn(self._editor, parent, context)
        messages = self._opening(turn, index, count)
        while turn.protocol.calls < CALLS:
            turn.protocol.calls += 1
            try:
                said = await self._endpoint.ask(
                    fitting(messages, self._room),
                    temperature=TEMPERATURE,
                    seed=index,
                    shape=self._shape,
                    role="improver",
                    subject=f"candidate {index + 1} of {count}",
                )
            except ReplyCutOff as error:
                said, result = "", turn.repair(f"{error}; say the same in fewer words")
            except AuxiliaryError as error:
                return turn.failed(str(error))
            else:
                turn.protocol.said.append(said)
                result = turn.understand(said)
            if isinstance(result, Proposal | Skip):
                return result
            if turn.protocol.repairs > REPAIRS:
                return turn.failed(turn.protocol.problems[-1])
            messages += [
                {"role": "assistant", "content": said or "[cut off]"},
                {"role": "user", "content": result},
            ]
        return turn.failed(f"no proposal within {CALLS} calls")

    async def close(self) -> None:
        await self._endpoint.close()

    def _opening(self, turn: "_Turn", index: int, count: int) -> list[dict[str, str]]:
        system = self._editor.system()
        shown = overview(
            turn.parent,
            turn.context,
            index,
            count,
            room=self._room - estimated_tokens(system),
            scopes=self._editor.scopes(turn.context),
        )
        return [{"role": "system", "content": system}, {"role": "user", "content": shown}]


class _Turn:
    """One candidate's conversation."""

    def __init__(self, editor: Editor, parent: Harness, context: ProposalContext) -> None:
        self.editor, self.parent, self.context = editor, parent, context
        self.protocol = _Protocol()

    def failed(self, reason: str) -> Skip:
        return Skip(kind="failed", reason=reason, protocol=self.protocol.record())

    def repair(self, problem: str) -> str:
        self.protocol.repairs += 1
        self.protocol.problems.append(problem)
        return render("repair", problem=problem, repairs_left=max(0, REPAIRS - self.protocol.repairs))

    def understand(self, said: str) -> Proposal | Skip | str:
        """A result, or the host's next message to the model."""
        try:
            command = _flat(read_object(said, ("command", *_COMMANDS)))
        except AuxiliaryError as error:
            return self.repair(str(error))
        match command.get("command"):
            case "read":
                return self._read(command)
            case "skip":
                reason = str(command.get("reason") or "no reason")[:_LONGEST_REASON]
                return Skip(reason=reason, protocol=self.protocol.record())
            case "propose":
                return self._proposal(command)
            case other:
                return self.repair(f"unknown command {str(other)[:40]!r}: use read, propose or skip")

    def _read(self, command: Mapping[str, Any]) -> str:
        if self.protocol.parsed:
            return self.repair("a proposal was already given, reads are closed")
        if self.protocol.reads >= READS:
            return self.repair(f"all {READS} reads are used; propose or skip")
        offset = command.get("offset") or 0
        if not isinstance(offset, int) or isinstance(offset, bool):
            return self.repair(f"offset is a number of characters, not {str(offset)[:40]!r}")
        try:
            found = read_field(str(command.get("field")), offset, self.parent, self.context)
        except KeyError as error:
            return self.repair(f"unknown field: {error}")
        self.protocol.reads += 1
        return render(
            "read",
            address=found.address,
            length=len(found.text),
            offset=found.offset,
            left=found.left,
            next=found.offset + len(found.text),
            reads_left=READS - self.protocol.reads,
            text=found.text,
        )

    def _proposal(self, command: Mapping[str, Any]) -> Proposal | str:
        self.protocol.parsed = True
        try:
            hypothesis, rationale = _texts(command)
            cited = _citations(command)
            harness = Harness(code=self.editor.build(command, self.parent, self.context))
            if (problem := self.context.evidence.citation_problem(cited)) is not None:
                raise NotAccepted(f"{problem}; the ids are {self._known_ids()}")
        except NotAccepted as error:
            return self.repair(str(error))
        return Proposal(
            harness=harness,
            hypothesis=hypothesis,
            rationale=rationale,
            evidence_ids=cited,
            protocol=self.protocol.record(),
        )

    def _known_ids(self) -> str:
        """Some of the citable ids with their tasks, one of each task first."""
        by_task: dict[str, str] = {}
        for item in self.context.evidence.items:
            by_task.setdefault(item.task_id, item.id)
        shown = [f"{name} (task {number + 1})" for number, name in enumerate(by_task.values())]
        return ", ".join(shown[:12]) + (" ..." if len(shown) > 12 else "")


def _flat(command: dict[str, Any]) -> dict[str, Any]:
    """Undo one wrapper named after the command: {"propose": {...}}; leave out what is null."""
    for name in _COMMANDS:
        inner = command.get(name)
        if "command" not in command and isinstance(inner, dict):
            command = {"command": name, **cast("dict[str, Any]", inner)}
            break
    return {key: value for key, value in command.items() if value is not None}


def _texts(command: Mapping[str, Any]) -> tuple[str, str]:
    """Hypothesis and rationale; the second may be left out."""
    hypothesis = command.get("hypothesis")
    if not isinstance(hypothesis, str) or not hypothesis.strip():
        raise NotAccepted("a proposal needs a hypothesis: a text that is not empty")
    rationale = command.get("rationale") or hypothesis
    if not isinstance(rationale, str):
        raise NotAccepted("the rationale must be a text")
    return hypothesis[:_LONGEST_REASON], rationale[:_LONGEST_REASON]


def _citations(command: Mapping[str, Any]) -> tuple[str, ...]:
    ids = command.get("evidence_ids")
    if not isinstance(ids, list):
        raise NotAccepted('a proposal needs evidence_ids: a list of two to four ids such as "e0:0"')
    cited = cast("list[Any]", ids)
    if not all(isinstance(item, str) for item in cited):
        raise NotAccepted("every evidence id is a text")
    return tuple(str(item) for item in cited)


def _shape(editor: Editor) -> Shape:
    """One flat object for all three commands; what a command does not need is null."""
    properties: dict[str, Any] = {
        "command": {"type": "string", "enum": list(_COMMANDS)},
        "field": {"type": ["string", "null"]},
        "offset": {"type": ["integer", "null"]},
        "reason": {"type": ["string", "null"]},
        **{name: dict(schema) for name, schema in editor.fields.items()},
        **{name: {"type": ["string", "null"]} for name in _TEXTS},
        "evidence_ids": {"type": ["array", "null"], "items": {"type": "string"}},
    }
    return Shape(
        "command",
        {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    )
