"""Proofs that a sandbox on this machine isolates, made from inside by trying; for `rinr doctor`.

Each check states what it shows. A check that cannot be made fails: nothing is assumed.
"""

import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from broker.errors import SandboxLost
from broker.sandbox.base import Role, Sandbox, SandboxFactory

_SECONDS = 30.0


@dataclass(frozen=True)
class Check:
    """One proof: what was to be shown, whether it was, and what was seen if not."""

    name: str
    passed: bool
    detail: str = ""


async def _printed(sandbox: Sandbox, code: str) -> str:
    """What code prints inside execution, or its error."""
    await sandbox.send({"op": "execute", "code": code, "seconds": _SECONDS})
    frame = await sandbox.receive(2 * _SECONDS)
    return (frame["stdout"] + frame["error"]).strip()


def _trying(code: str) -> str:
    """Code that prints `refused` where `code` raises what an isolated place must raise."""
    return f"try:\n    {code}\n    print('possible')\nexcept (OSError, MemoryError):\n    print('refused')"


async def check_sandbox(factory: SandboxFactory) -> list[Check]:
    """Start a sandbox of each role and try to break out. Never raises for a failed proof."""
    checks: list[Check] = []

    async def check(name: str, proof: Callable[[], Awaitable[str]], wanted: str) -> None:
        try:
            seen = await proof()
        except (SandboxLost, TimeoutError) as error:
            seen = str(error)
        checks.append(Check(name, seen == wanted, "" if seen == wanted else seen[-300:]))

    with tempfile.TemporaryDirectory(prefix="rinr-check-") as folder:
        lake = Path(folder) / "lake"
        lake.mkdir()
        token = secrets.token_hex(8)
        (lake / "token").write_text(token)
        (Path(folder) / "outside").write_text(token)
        try:
            execution = await factory.start(Role.EXECUTION, lake=lake)
        except SandboxLost as error:
            return [Check(f"a {factory.kind} sandbox starts", False, str(error))]
        try:
            checks.append(Check(f"a {factory.kind} sandbox starts", True))

            def run(code: str) -> Callable[[], Awaitable[str]]:
                return lambda: _printed(execution, code)

            pandas = "import numpy, pandas\nprint('imported')"
            await check("numpy and pandas import", run(pandas), "imported")
            await check("execution reads the lake", run("print(open('/lake/token').read())"), token)
            await check("the lake is read-only", run(_trying("open('/lake/new', 'w')")), "refused")
            outside = _trying(f"open({str(Path(folder) / 'outside')!r})")
            await check("the host's files are invisible", run(outside), "refused")
            with socket.create_server(("127.0.0.1", 0)) as server:
                target = server.getsockname()
                connect = _trying(f"__import__('socket').create_connection({target!r}, 3)")
                await check("there is no network", run(connect), "refused")
            await check("process 1 is closed", run(_trying("open('/proc/1/environ').read()")), "refused")
            await check("memory is limited", run(_trying("x = bytearray(1 << 42)")), "refused")
            count = _trying("kept = [open('/dev/null') for _ in range(100_000)]")
            await check("open files are limited", run(count), "refused")
            await check("the controller sees no lake", lambda: _controller_sees(factory), "[]")
        finally:
            await execution.close()
    return checks


async def _controller_sees(factory: SandboxFactory) -> str:
    """What a program finds where the lake would be."""
    program = (
        "import os\ndef run(task, api):\n    api.submit(repr(os.listdir('/lake') + os.listdir('/assets')))"
    )
    sandbox = await factory.start(Role.CONTROLLER)
    try:
        await sandbox.send({"op": "start", "program": program, "task": {}})
        frame = await sandbox.receive(_SECONDS)
        return str(frame.get("text", frame))
    finally:
        await sandbox.close()
