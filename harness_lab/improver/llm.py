"""The improver `llm`: any OpenAI-compatible chat endpoint, three commands (PROP-04, PROP-05).

`read` shows a public field from an offset, `propose` gives a full program, `skip` a reason. At most 3 reads,
2 repairs, 6 calls a candidate; once a proposal was parsed, reads stay closed. What goes wrong is recorded in
the proposal's protocol and ends as a failed attempt; the step goes on (PROP-08).
"""

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from broker.harness import Harness
from harness_lab.chat import AuxiliaryError, ChatEndpoint, read_object
from harness_lab.check import check_program
from harness_lab.improver.base import Proposal, ProposalContext, Skip
from harness_lab.improver.view import overview, read_field

READS: Final = 3
REPAIRS: Final = 2
CALLS: Final = 6
TEMPERATURE: Final = 0.7

_INSTRUCTION: Final = """You improve a Python program run(task, api) with which a language model answers.
The model is fixed; the program may change prompts, parsing, control flow, memory and tool use.
api.generate(messages) gives the model's text, api.execute(code) runs Python where the tables are,
api.submit(text) gives the answer. Messages are {"role", "content", "source"}; the program's own text has
source "harness". Work on causes that several tasks share; interpretations are hypotheses.
Never write task ids or answers into the program.
Reply with one JSON object, one of:
{"command": "read", "field": "<address from the overview>", "offset": 0}
{"command": "propose", "code": "<whole program>", "hypothesis": "...", "rationale": "...",
 "evidence_ids": ["e0:0", ...]}
{"command": "skip", "reason": "..."}
A proposal cites two to four evidence ids from at least two tasks."""


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


class ChatImprover:
    """One fixed chat model."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint
        self.identity = f"llm/1:{endpoint.identity}"

    def spending(self) -> str:
        return self._endpoint.client.spending()

    async def propose(
        self, parent: Harness, context: ProposalContext, index: int, count: int
    ) -> Proposal | Skip:
        """Never raises for what the model says or for a dead endpoint."""
        protocol = _Protocol()
        shown = overview(parent, context, index, count)
        messages = [{"role": "system", "content": _INSTRUCTION}, {"role": "user", "content": shown}]
        while protocol.calls < CALLS:
            protocol.calls += 1
            try:
                said = await self._endpoint.ask(messages, temperature=TEMPERATURE, seed=index)
            except AuxiliaryError as error:
                return _failed(str(error), protocol)
            protocol.said.append(said)
            result = _understand(said, parent, context, protocol)
            if isinstance(result, Proposal | Skip):
                return result
            if protocol.repairs > REPAIRS:
                return _failed(protocol.problems[-1], protocol)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": result}]
        return _failed(f"no proposal within {CALLS} calls", protocol)

    async def close(self) -> None:
        await self._endpoint.close()


def _failed(reason: str, protocol: _Protocol) -> Skip:
    return Skip(kind="failed", reason=reason, protocol=protocol.record())


def _understand(
    said: str, parent: Harness, context: ProposalContext, protocol: _Protocol
) -> Proposal | Skip | str:
    """A result, or the host's next message to the model."""
    try:
        command = _flat(read_object(said))
    except AuxiliaryError as error:
        return _repair(str(error), protocol)
    match command.get("command"):
        case "read":
            return _read(command, parent, context, protocol)
        case "skip":
            return Skip(
                reason=str(command.get("reason", ""))[:2000] or "no reason", protocol=protocol.record()
            )
        case "propose":
            return _proposal(command, parent, context, protocol)
        case other:
            return _repair(f"unknown command {str(other)[:40]!r}: use read, propose or skip", protocol)


def _flat(command: dict[str, Any]) -> dict[str, Any]:
    """Undo one wrapper named after the command: {"propose": {...}}."""
    for name in ("read", "propose", "skip"):
        inner = command.get(name)
        if "command" not in command and isinstance(inner, dict):
            return {"command": name, **inner}
    return command


def _repair(problem: str, protocol: _Protocol) -> str:
    protocol.repairs += 1
    protocol.problems.append(problem)
    return f"Not accepted: {problem}. Reply again with one JSON object."


def _read(command: dict[str, Any], parent: Harness, context: ProposalContext, protocol: _Protocol) -> str:
    if protocol.parsed:
        return _repair("a proposal was already given, reads are closed", protocol)
    if protocol.reads >= READS:
        return _repair(f"all {READS} reads are used", protocol)
    offset = command.get("offset", 0)
    try:
        text = read_field(
            str(command.get("field")), offset if isinstance(offset, int) else 0, parent, context
        )
    except KeyError as error:
        return _repair(f"unknown field {error}", protocol)
    protocol.reads += 1
    return text


def _proposal(
    command: dict[str, Any], parent: Harness, context: ProposalContext, protocol: _Protocol
) -> Proposal | str:
    protocol.parsed = True
    try:
        made = Proposal(
            harness=Harness(code=command["code"]),
            hypothesis=command["hypothesis"],
            rationale=command.get("rationale") or command["hypothesis"],
            evidence_ids=tuple(command["evidence_ids"]),
        )
    except (KeyError, TypeError, ValidationError):
        return _repair("propose needs code, hypothesis, rationale and evidence_ids", protocol)
    found = check_program(made.harness.code, parent.code)
    problem = found.errors[0] if found.errors else context.evidence.citation_problem(made.evidence_ids)
    if problem:
        return _repair(problem, protocol)
    return made.model_copy(update={"protocol": protocol.record()})
