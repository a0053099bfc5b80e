"""The program's side of an episode: starts the controller sandbox and turns its frames into typed events.

A frame that breaks the protocol is the program's fault (`HarnessError`); a sandbox that vanishes without a
confirmed reason is ours (`SandboxLost`). Must not know budgets, models or grades.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import BudgetExhausted, HarnessError, SandboxLost
from broker.record import Left, StopReason
from broker.sandbox.base import Role, Sandbox, SandboxFactory
from broker.sandbox.protocol import ProtocolError

MAX_TEXT_BYTES: Final = 512 * 1024
"""Longest tool code and longest submission."""


@dataclass(frozen=True)
class Generate:
    messages: Any


@dataclass(frozen=True)
class Execute:
    code: str


@dataclass(frozen=True)
class Submit:
    text: str


@dataclass(frozen=True)
class Ended:
    """`run` returned."""


Event = Generate | Execute | Submit | Ended


class Controller:
    """One running program."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @classmethod
    async def open(cls, sandboxes: SandboxFactory) -> "Controller":
        """A ready controller without a program: neither the lake nor assets are there (HOST-02)."""
        return cls(await sandboxes.start(Role.CONTROLLER))

    async def start(self, program: str, task: Mapping[str, Any]) -> None:
        """Raises `HarnessError` for a program that does not fit into one frame."""
        try:
            await self._sandbox.send({"op": "start", "program": program, "task": dict(task)})
        except ProtocolError as error:
            raise HarnessError("protocol", f"the program cannot be started: {error}") from error

    async def next_event(self, timeout: float) -> Event:
        """Raises TimeoutError, `HarnessError` (crash or protocol) or `SandboxLost`.

        TimeoutError means that the program took too long; a sandbox that took too long is lost.
        """
        try:
            frame = await self._sandbox.receive(timeout)
        except TimeoutError:
            if not await self._sandbox.responds():
                raise SandboxLost("the program's sandbox is frozen") from None
            raise
        except SandboxLost as error:
            if self._sandbox.oom_killed():
                raise HarnessError("crash", "the program used more memory than its sandbox has") from error
            raise
        return _read_event(frame)

    async def answer(self, value: Any, left: Left | None = None) -> None:
        """Raises `SandboxLost`, and `BudgetExhausted` for an answer that fits into no frame."""
        frame: dict[str, Any] = {"op": "result", "value": value}
        if left is not None:
            frame |= {"left": left.model_dump(), "notice": left.notice()}
        try:
            await self._sandbox.send(frame)
        except ProtocolError as error:
            raise BudgetExhausted(StopReason.OUTPUT_TRUNCATED) from error

    async def close(self) -> None:
        await self._sandbox.close()


def _read_event(frame: Mapping[str, Any]) -> Event:
    match frame.get("op"):
        case "generate":
            return Generate(frame.get("messages"))
        case "execute":
            return Execute(_text(frame.get("code"), "api.execute needs code as text"))
        case "submit":
            return Submit(_text(frame.get("text"), "api.submit needs an answer as text"))
        case "end":
            return Ended()
        case "error":
            kind = "protocol" if frame.get("kind") == "protocol" else "crash"
            raise HarnessError(kind, str(frame.get("traceback", "")))
        case other:
            raise HarnessError("protocol", f"unknown operation {str(other)[:80]!r}")


def _text(value: Any, problem: str) -> str:
    if not isinstance(value, str):
        raise HarnessError("protocol", f"{problem}, got {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise HarnessError("protocol", f"{problem}, got half of a surrogate pair") from None
    if size > MAX_TEXT_BYTES:
        raise HarnessError("protocol", f"{problem} of at most {MAX_TEXT_BYTES} bytes, got {size}")
    return value
