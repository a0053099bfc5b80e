"""The dry run: what would the model receive, and what would be executed and submitted? (PROP-07)

A program runs in the controller sandbox, never on the host, against a scripted api: canned model texts and
observations stand in for model and tools, and budgets are told as the host tells them. Equal transcripts mean
equal behaviour under these scripts; a pattern in a program's text alone is no reason to drop it (T01, T02).
Whatever the program does, a run ends within its seconds, events and characters.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict

from broker.controller import Controller, Ended, Execute, Generate, Submit
from broker.errors import HarnessError
from broker.harness import Harness
from broker.record import Left
from broker.sandbox.base import SandboxFactory
from catalog.digest import canonical_json, digest_bytes
from harness_lab.dry_scripts import SCRIPTS, Script

_AT_ONCE: Final = 4
_LARGEST_EVENT: Final = 32 * 1024
"""Bytes of JSON; of a larger event its digest is kept."""


@dataclass(frozen=True)
class DryLimits:
    """What one dry run may take. Its results do not depend on them unless one is reached."""

    call_seconds: float = 20.0
    """Longest time between two calls of `api`; after that the rest of the run is left out."""
    total_seconds: float = 120.0
    events: int = 24
    """Of one scripted episode."""
    characters: int = 1 << 20
    """Of all texts that are kept as sent."""


class DryRun(BaseModel):
    """Everything that left the program under every script and task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    events: tuple[dict[str, Any], ...]
    sent_text: tuple[str, ...]
    """Distinct message contents, in order of first appearance: the text that reaches the model."""
    cut: str = ""
    """Why not everything ran: `time`, `characters`, or nothing."""


async def dry_run(
    sandboxes: SandboxFactory,
    harness: Harness,
    tasks: Sequence[Mapping[str, Any]],
    scripts: Sequence[Script] = SCRIPTS,
    limits: DryLimits | None = None,
) -> DryRun:
    """Run a program on public task dicts under every script. A crash is an event; SandboxLost is raised."""
    run = _Run(sandboxes, harness, limits or DryLimits())
    jobs = [asyncio.ensure_future(run.episode(task, script)) for task in tasks for script in scripts]
    try:
        episodes = await asyncio.gather(*jobs)
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    events = [event for episode in episodes for event in (*episode, {"op": "next"})]
    texts = list(run.sent_text(events))
    kept = [_kept(event) for event in events]
    return DryRun(events=tuple(kept), sent_text=tuple(texts), cut=run.cut)


def unchanged(parent: DryRun, candidate: DryRun) -> bool:
    """Whether the model would receive, the tools execute and the host be told exactly the same."""
    return _plain(list(parent.events)) == _plain(list(candidate.events))


def new_text(parent: DryRun, candidate: DryRun) -> tuple[str, ...]:
    """Texts that reach the model under the candidate and not under the parent (T02)."""
    return tuple(text for text in candidate.sent_text if text not in parent.sent_text)


class _Run:
    """One program's dry run: its limits are shared by all its episodes."""

    def __init__(self, sandboxes: SandboxFactory, harness: Harness, limits: DryLimits) -> None:
        self._sandboxes, self._harness, self._limits = sandboxes, harness, limits
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._end = time.monotonic() + limits.total_seconds
        self.cut = ""

    async def episode(self, task: Mapping[str, Any], script: Script) -> list[dict[str, Any]]:
        async with self._slots:
            if self.cut or time.monotonic() > self._end:
                self.cut = self.cut or "time"
                return [{"op": "left out"}]
            controller = await Controller.open(self._sandboxes)
            found: list[dict[str, Any]] = []
            try:
                await controller.start(self._harness.code, task)
                await self._converse(controller, _Budget(task), script, found)
            except HarnessError as error:
                found.append({"op": "error", "kind": error.kind})
            except TimeoutError:
                found.append({"op": "timeout"})
                self.cut = "time"
            finally:
                await controller.close()
            return found

    async def _converse(
        self, controller: Controller, budget: "_Budget", script: Script, found: list[dict[str, Any]]
    ) -> None:
        texts, observations = _in_turn(script.texts), _in_turn(script.observations)
        while len(found) < self._limits.events:
            left = min(self._limits.call_seconds, self._end - time.monotonic())
            event = await controller.next_event(max(0.01, left))
            match event:
                case Generate(messages=messages):
                    found.append({"op": "generate", "messages": messages})
                    if not budget.take("model_calls"):
                        return
                    await controller.answer(next(texts), budget.left(messages))
                case Execute(code=code):
                    found.append({"op": "execute", "code": code})
                    if not budget.take("tool_calls"):
                        return
                    await controller.answer(next(observations), budget.left())
                case Submit(text=text):
                    found.append({"op": "submit", "text": text})
                    if not budget.take("user_turns"):
                        return
                    await controller.answer({"done": False, "reply": script.reply}, budget.left())
                case Ended():
                    found.append({"op": "end"})
                    return

    def sent_text(self, events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        room, seen = self._limits.characters, set[str]()
        for event in events:
            for text in _contents(event.get("messages")):
                if text in seen:
                    continue
                if len(text) > room:
                    self.cut = self.cut or "characters"
                    return
                room -= len(text)
                seen.add(text)
                yield text


class _Budget:
    """What the program is told of its budgets, counted as the host counts."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        given = cast("Mapping[str, Any]", task.get("budgets") or {})
        self._calls = {name: int(given.get(name, 1)) for name in ("model_calls", "tool_calls", "user_turns")}
        self._context = int(given.get("context_tokens", 4096))
        self._room = self._context
        self._seconds = float(given.get("seconds", 60))

    def take(self, name: str) -> bool:
        """Whether there was one left."""
        self._calls[name] -= 1
        return self._calls[name] >= 0

    def left(self, messages: Any = None) -> Left:
        """Tokens by a rule of thumb: four characters each."""
        if messages is not None:
            self._room = max(0, self._context - sum(map(len, _contents(messages))) // 4)
        return Left(**self._calls, context_tokens=self._room, seconds=self._seconds)


def _in_turn(items: Sequence[Any]) -> Iterator[Any]:
    yield from items
    while True:
        yield items[-1]


def _contents(messages: Any) -> list[str]:
    """Texts of the messages, whatever else is wrong with them."""
    if not isinstance(messages, list):
        return []
    items = [cast("dict[str, Any]", item) for item in cast("list[Any]", messages) if isinstance(item, dict)]
    return [str(item.get("content", "")) for item in items]


def _kept(event: dict[str, Any]) -> dict[str, Any]:
    data = _plain(event)
    if len(data) <= _LARGEST_EVENT:
        return event
    return {"op": event["op"], "bytes": len(data), "digest": digest_bytes(data)}


def _plain(value: Any) -> bytes:
    try:
        return canonical_json(value)
    except (TypeError, ValueError):  # an integer that JSON has no room for
        return repr(value).encode("utf-8", "replace")
