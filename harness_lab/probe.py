"""Is the auxiliary usable, and how does it want to be asked? One tiny read, propose and skip, before a run.

What it learns (structured output, length parameter, sampling, effort) stays with the endpoint. Every question
and answer is an exchange of role `probe`. Must not know a task, a program or a run.
"""

import statistics
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from harness_lab.chat import AuxiliaryError, ChatEndpoint, read_object
from harness_lab.exchange import Exchange
from harness_lab.manner import Manner, Shape

_PROGRAM: Final = "def run(task, api):\n    api.submit(api.generate([]))\n"
_EFFORT: Final = "medium"
"""What is tried where no effort is configured; only told, never used."""
_INSTRUCTION: Final = (
    "This is a test of a protocol. Answer each message with one JSON object and nothing else. Its keys: "
    '"command", "field", "offset", "code", "reason"; keys that a command does not need hold "" or 0.'
)
_ASKED: Final[tuple[tuple[Literal["read", "propose", "skip"], str], ...]] = (
    ("read", 'Ask to read the field "program" from offset 0: the command is "read".'),
    (
        "propose",
        f'The field holds:\n{_PROGRAM}\nGive it back unchanged: the command is "propose", with "code".',
    ),
    ("skip", 'Now end the test: the command is "skip", the reason is "probe".'),
)
_COMMAND: Final = Shape(
    "command",
    {
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": ["read", "propose", "skip"]},
            "field": {"type": "string"},
            "offset": {"type": "integer"},
            "code": {"type": "string"},
            "reason": {"type": "string"},
        },
        "required": ["command", "field", "offset", "code", "reason"],
        "additionalProperties": False,
    },
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Step(_Frozen):
    """One of the three commands."""

    command: Literal["read", "propose", "skip"]
    outcome: str
    """`as asked`, or what came instead."""
    seconds: float


class Probe(_Frozen):
    """What was found. Tokens and cost are those of the whole probe."""

    identity: str
    served: str
    """The model's name by its own answer."""
    usable: bool
    problem: str
    """Why it is not usable, one line; empty when it is."""
    manner: Manner
    """How it will be asked."""
    refusals: tuple[str, ...]
    """What it said to the parameters that it does not take."""
    json_alone: bool
    """Every reply was JSON and nothing beside it."""
    effort: Literal["accepted", "refused", "not tried"]
    max_tokens: int
    steps: tuple[Step, ...]
    latency: float
    """Seconds of the median step."""
    requests: int
    prompt_tokens: int
    completion_tokens: int
    reported: bool
    cost: float | None
    """By the configured prices; None without prices."""

    def line(self) -> str:
        """For the log of a run."""
        price = "" if self.cost is None else f", cost {self.cost:.4f}"
        state = "usable" if self.usable else f"not usable: {self.problem}"
        return (
            f"auxiliary {self.identity}: {state}; {self.manner.response_format}, {self.latency:.1f} s{price}"
        )


async def probe(endpoint: ChatEndpoint) -> Probe:
    """Ask, and never raise for what the endpoint does."""
    first = endpoint.ledger.mark()
    wanted = endpoint.manner.effort
    steps, problem, alone = await _exchange(endpoint)
    effort: Literal["accepted", "refused", "not tried"] = "not tried"
    if not problem and wanted is not None:
        effort = "accepted" if endpoint.manner.effort is not None else "refused"
    elif not problem:
        effort = await _try_effort(endpoint)
    said = endpoint.ledger.since(first)
    return Probe(
        identity=endpoint.identity,
        served=endpoint.served,
        usable=not problem,
        problem=problem,
        manner=endpoint.manner,
        refusals=tuple(endpoint.refusals),
        json_alone=alone,
        effort=effort,
        max_tokens=endpoint.max_tokens,
        steps=steps,
        latency=statistics.median(step.seconds for step in steps) if steps else 0.0,
        requests=endpoint.client.endpoint.requests,
        prompt_tokens=sum(item.prompt_tokens for item in said),
        completion_tokens=sum(item.completion_tokens for item in said),
        reported=all(item.reported for item in said),
        cost=_cost(said),
    )


async def _exchange(endpoint: ChatEndpoint) -> tuple[tuple[Step, ...], str, bool]:
    """The steps, why it is not usable, and whether each reply was JSON alone."""
    messages = [{"role": "system", "content": _INSTRUCTION}]
    steps: list[Step] = []
    alone = True
    for command, asked in _ASKED:
        messages.append({"role": "user", "content": asked})
        try:
            said = await endpoint.ask(
                messages, temperature=0.0, shape=_COMMAND, role="probe", subject=command
            )
        except AuxiliaryError as error:
            return tuple(steps), _with_hint(str(error)), False
        messages.append({"role": "assistant", "content": said})
        seconds = endpoint.ledger.latest().seconds
        steps.append(Step(command=command, outcome=_judge(command, said), seconds=seconds))
        alone = alone and said.strip().startswith("{") and said.strip().endswith("}")
    if not any(step.outcome == "as asked" for step in steps):
        return tuple(steps), f"it answers, but follows no command: {steps[0].outcome}", alone
    return tuple(steps), "", alone


def _judge(command: str, said: str) -> str:
    try:
        found: dict[str, Any] = read_object(said, ["command"])
    except AuxiliaryError as error:
        return str(error)
    if found.get("command") != command:
        return f"the command was {str(found.get('command'))[:40]!r}"
    if command == "propose" and "def run" not in str(found.get("code")):
        return "no program in `code`"
    if command == "read" and found.get("field") != "program":
        return f"the field was {str(found.get('field'))[:40]!r}"
    return "as asked"


async def _try_effort(endpoint: ChatEndpoint) -> Literal["accepted", "refused"]:
    """Whether one plain question with `reasoning_effort` is served; teaches the endpoint nothing."""
    kept, refusals = endpoint.manner, len(endpoint.refusals)
    endpoint.manner = kept.model_copy(update={"effort": _EFFORT})
    try:
        await endpoint.ask(
            [{"role": "user", "content": "Say ok."}], temperature=0.0, role="probe", subject="effort"
        )
        return "accepted" if endpoint.manner.effort is not None else "refused"
    except AuxiliaryError:
        return "refused"
    finally:
        endpoint.manner = kept
        del endpoint.refusals[refusals:]


def _with_hint(problem: str) -> str:
    """Which setting helps, where the endpoint's words say so."""
    if "max_tokens" in problem or "max_completion_tokens" in problem:
        return f"{problem}; lower auxiliary.max_tokens"
    if "cut off" in problem:
        return f"{problem}; raise auxiliary.max_tokens, or lower auxiliary.effort"
    return problem


def _cost(said: tuple[Exchange, ...]) -> float | None:
    costs = [item.cost for item in said if item.cost is not None]
    return sum(costs) if costs else None
