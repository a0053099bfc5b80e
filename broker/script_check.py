"""Runs a task's own test script on what an episode left, in a fresh sandbox that the program never saw.

The sandbox holds the workspace, the private tests and nothing else of the episode: no process of it, no
network. A script that does not end in time, or leaves no usable reward, is a `RewardError`; a sandbox that
breaks is `SandboxLost`. Neither is a score. Must not know what the rewards are worth.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from broker import script_inside
from broker.errors import SandboxLost
from broker.sandbox.base import Role, SandboxFactory
from broker.workspace import Workspace, restore, run_ours
from verifier.script import RewardError, ScriptStep, read_rewards

_GRACE_SECONDS: Final = 30.0
"""For laying out the tests and killing what the script left running."""
_INSIDE: Final = Path(script_inside.__file__).read_text(encoding="utf-8")


@dataclass(frozen=True)
class ScriptResult:
    """One run of a script that left rewards."""

    rewards: dict[str, float]
    status: int | None
    """Of the script's end; no reward."""
    log: str
    """The tail of what it printed. Private: it may quote the tests."""


async def run_script(
    sandboxes: SandboxFactory,
    workspace: Workspace,
    step: ScriptStep,
    *,
    private: Path,
    lake: Path | None,
    memory_bytes: int | None = None,
) -> ScriptResult:
    """Run `step` on a copy of the workspace. `private` is the task's folder of private files.

    Raises RewardError and SandboxLost.
    """
    settings = {
        "tests": list(step.tests),
        "seconds": step.seconds,
        "environment": dict(step.environment),
        "memory_bytes": memory_bytes,
    }
    sandbox = await sandboxes.start(Role.EXECUTION, lake=lake, assets=private)
    try:
        await restore(sandbox, workspace)
        code = f"{_INSIDE}\nrun_script({settings!r})"
        said = await run_ours(sandbox, code, step.seconds + _GRACE_SECONDS)
    except SandboxLost:
        if sandbox.oom_killed():
            raise RewardError("the script ran out of memory") from None
        raise
    finally:
        await sandbox.close()
    found = _read(said)
    if found["timed_out"]:
        raise RewardError(f"the script did not end within {step.seconds:g} s")
    return ScriptResult(read_rewards(found["json"], found["text"]), found["status"], found["log"])


def _read(said: str) -> dict[str, Any]:
    """The one line that `run_script` printed inside; what the script printed went elsewhere."""
    try:
        found: Any = orjson.loads(said)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not {"timed_out", "status", "json", "text", "log"} <= found.keys():
        raise SandboxLost("the check sandbox answered something that is no result")
    return found  # pyright: ignore[reportUnknownVariableType]
