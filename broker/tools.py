"""One episode's Python session in the execution sandbox: state lives as long as the episode (HOST-09).

The sandbox starts at the first call, or ahead of it when `prestart` was asked for. What the code did is
data; a sandbox that vanishes without a confirmed reason is `SandboxLost`. Must not know models, messages
or grades.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.clock import not_charged
from broker.errors import SandboxLost
from broker.sandbox.base import Role, Sandbox, SandboxFactory
from broker.sandbox.protocol import ProtocolError
from broker.workspace import Workspace, collect, run_ours

_GRACE_SECONDS: Final = 8.0
"""The sandbox itself ends a call at its limit; if it has not said so by then, it is lost."""
PREPARE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class ToolResult:
    """What one call gave, before clipping to the token budget."""

    stdout: str
    error: str
    output_truncated: bool = False
    timed_out: bool = False
    out_of_memory: bool = False
    """Confirmed by the sandbox, never guessed (HOST-07)."""


def clean_code(code: str) -> str:
    """Strip a program's code and drop a leading line `python`, as left over from a fenced block."""
    text = code.strip()
    first, _, rest = text.partition("\n")
    return rest.strip() if first.strip().lower() == "python" else text


class ExecutionSession:
    """Starts lazily, persists over the calls of one episode, is destroyed with it."""

    def __init__(
        self, sandboxes: SandboxFactory, *, lake: Path | None, assets: Path | None, prepare: str = ""
    ) -> None:
        """`prepare` is code of the host's that runs before any other."""
        self._sandboxes = sandboxes
        self._lake = lake
        self._assets = assets
        self._prepare = prepare
        self._starting: asyncio.Task[Sandbox] | None = None

    def prestart(self) -> None:
        """Begin to start the sandbox in the background."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())

    async def _start(self) -> Sandbox:
        sandbox = await self._sandboxes.start(Role.EXECUTION, lake=self._lake, assets=self._assets)
        try:
            if self._prepare:
                await run_ours(sandbox, self._prepare, PREPARE_SECONDS)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def workspace(self) -> Workspace:
        """What the session's code left in /work until now; it runs on afterwards. Raises `SandboxLost`."""
        return await collect(await self._started())

    async def place(self, code: str) -> None:
        """Run code of the host's between two steps of a task. Raises `SandboxLost`."""
        await run_ours(await self._started(), code, PREPARE_SECONDS)

    async def _started(self) -> Sandbox:
        self.prestart()
        assert self._starting is not None
        return await self._starting

    async def execute(self, code: str, seconds: float) -> ToolResult:
        """Run one piece of code. Raises `SandboxLost`."""
        with not_charged():
            sandbox = await self._started()
        try:
            await sandbox.send({"op": "execute", "code": code, "seconds": seconds})
            frame = await sandbox.receive(seconds + _GRACE_SECONDS)
        except ProtocolError as error:
            return ToolResult(stdout="", error=f"the code was not run: {error}")
        except TimeoutError:
            # Process 1 ends a call at its limit, whatever runs there. If it did not, it is frozen.
            raise SandboxLost(f"the sandbox did not end a call of {seconds:g} s") from None
        except SandboxLost:
            if sandbox.oom_killed():
                return ToolResult(stdout="", error="the sandbox ran out of memory", out_of_memory=True)
            raise
        return _read_observation(frame, out_of_memory=sandbox.oom_killed())

    async def close(self) -> None:
        """Destroy the sandbox, also one that is just starting. May be called twice."""
        starting, self._starting = self._starting, None
        if starting is None:
            return
        try:
            sandbox = await starting
        except SandboxLost:
            return  # It never started; whoever needed it was told by `execute`.
        except asyncio.CancelledError:
            if starting.cancelled():
                return  # The end of the episode reached the start, which left nothing.
            raise
        await sandbox.close()


def _read_observation(frame: dict[str, object], *, out_of_memory: bool) -> ToolResult:
    stdout, error = frame.get("stdout"), frame.get("error")
    if frame.get("op") != "observation" or not isinstance(stdout, str) or not isinstance(error, str):
        raise SandboxLost("the execution sandbox answered something that is not an observation")
    return ToolResult(
        stdout=stdout,
        error=error,
        output_truncated=frame.get("output_truncated") is True,
        timed_out=frame.get("timed_out") is True,
        out_of_memory=out_of_memory,
    )
