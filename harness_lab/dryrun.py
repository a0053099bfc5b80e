"""The dry run: what would the model receive, and what would be executed and submitted? (PROP-07)

Parent and candidate run in the controller sandbox, never on the host, against a scripted api: canned model
texts and observations stand in for model and tools. Equal transcripts mean that the candidate's effective
behaviour is unchanged; a pattern in its text alone is no reason to drop it (cases T01, T02).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict

from broker.controller import Controller, Ended, Execute, Generate, Submit
from broker.errors import HarnessError
from broker.harness import Harness
from broker.sandbox.base import SandboxFactory
from catalog.digest import canonical_json

_TIMEOUT: Final = 20.0
_MAX_EVENTS: Final = 24


class Script(BaseModel):
    """One scripted episode. Texts and observations are given in turn; the last one repeats."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    texts: tuple[str, ...]
    observations: tuple[dict[str, Any], ...]
    reply: str


SCRIPTS: Final = (
    Script(
        texts=("<execute>print(1)</execute>", "<answer>A</answer>", "B"),
        observations=({"stdout": "name: X1, value: 7\n", "error": ""},),
        reply="Please reconsider your answer.",
    ),
    Script(
        texts=("I am not sure.", "<execute>x</execute>", "<answer>7</answer>"),
        observations=({"stdout": "", "error": "NameError: name 'x' is not defined"},),
        reply="The answer could not be read.",
    ),
    Script(
        texts=("<answer>X1</answer>",),
        observations=({"stdout": "", "error": ""},),
        reply="Please reconsider your answer.",
    ),
)
"""A tool call and an answer; prose, a failing call, an answer; an answer after an empty look-up."""


class DryRun(BaseModel):
    """Everything that left the program under every script and task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    events: tuple[dict[str, Any], ...]
    sent_text: tuple[str, ...]
    """Distinct message contents, in order of first appearance: the text that reaches the model."""


async def dry_run(sandboxes: SandboxFactory, harness: Harness, tasks: Sequence[Mapping[str, Any]]) -> DryRun:
    """Run a program on public task dicts under every script. A crash is an event; SandboxLost is raised."""
    events: list[dict[str, Any]] = []
    for task in tasks:
        for script in SCRIPTS:
            events += await _one(sandboxes, harness, task, script)
            events.append({"op": "next"})
    texts = [text for event in events if event["op"] == "generate" for text in _contents(event["messages"])]
    return DryRun(events=tuple(events), sent_text=tuple(dict.fromkeys(texts)))


def _contents(messages: Any) -> list[str]:
    """Texts of the messages, whatever else is wrong with them."""
    if not isinstance(messages, list):
        return []
    items = [cast("dict[str, Any]", item) for item in cast("list[Any]", messages) if isinstance(item, dict)]
    return [str(item.get("content", "")) for item in items]


def unchanged(parent: DryRun, candidate: DryRun) -> bool:
    """Whether the model would receive, the tools execute and the host be told exactly the same."""
    return canonical_json(list(parent.events)) == canonical_json(list(candidate.events))


def new_text(parent: DryRun, candidate: DryRun) -> tuple[str, ...]:
    """Texts that reach the model under the candidate and not under the parent (T02)."""
    return tuple(text for text in candidate.sent_text if text not in parent.sent_text)


async def _one(
    sandboxes: SandboxFactory, harness: Harness, task: Mapping[str, Any], script: Script
) -> list[dict[str, Any]]:
    controller = await Controller.open(sandboxes)
    found: list[dict[str, Any]] = []
    generated = executed = 0
    try:
        await controller.start(harness.code, task)
        while len(found) < _MAX_EVENTS:
            event = await controller.next_event(_TIMEOUT)
            match event:
                case Generate(messages=messages):
                    found.append({"op": "generate", "messages": messages})
                    await controller.answer(script.texts[min(generated, len(script.texts) - 1)])
                    generated += 1
                case Execute(code=code):
                    found.append({"op": "execute", "code": code})
                    await controller.answer(script.observations[min(executed, len(script.observations) - 1)])
                    executed += 1
                case Submit(text=text):
                    found.append({"op": "submit", "text": text})
                    if sum(entry["op"] == "submit" for entry in found) > 1:
                        break
                    await controller.answer({"done": False, "reply": script.reply})
                case Ended():
                    found.append({"op": "end"})
                    break
    except HarnessError as error:
        found.append({"op": "error", "kind": error.kind})
    except TimeoutError:
        found.append({"op": "timeout"})
    finally:
        await controller.close()
    return found
