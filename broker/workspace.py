"""What an episode left in /work: taken out of its execution sandbox, put into another one.

The archive never unfolds on the host; it is only carried. Must not know what it is checked by.
"""

import binascii
import tempfile
from dataclasses import dataclass
from typing import IO, Final

from broker.errors import SandboxLost
from broker.sandbox.base import MEBIBYTE, Sandbox

MAX_BYTES: Final = 64 * MEBIBYTE
MAX_ENTRIES: Final = 10_000
"""Files, folders and links of a workspace; the sum of its files' sizes is limited apart."""
_IN_MEMORY: Final = MEBIBYTE
_SECONDS: Final = 60.0
_PIECE: Final = 480 * 1024
_APPEND: Final = """
import binascii
with open('/tmp/workspace.tar', 'ab') as _file:
    _file.write(binascii.a2b_base64({data!r}))
"""
_UNPACK: Final = """
import os, tarfile
with tarfile.open('/tmp/workspace.tar', encoding='utf-8', errors='surrogateescape') as _archive:
    _archive.extraction_filter = tarfile.tar_filter
    _archive.extractall('/work')
os.remove('/tmp/workspace.tar')
"""


class NotPrepared(SandboxLost):
    """Code of the host's failed inside; the sandbox itself lives."""


@dataclass
class Workspace:
    """A tar archive of /work; `archive` is None when no sandbox was ever started, so that it is empty."""

    archive: IO[bytes] | None = None
    refused: str = ""
    """Why there is none: the program left more than the limits allow."""

    def close(self) -> None:
        if self.archive is not None:
            self.archive.close()


async def collect(sandbox: Sandbox) -> Workspace:
    """The workspace of an execution sandbox, which runs on afterwards. Raises SandboxLost."""
    archive: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - `Workspace` closes it
    try:
        await sandbox.send({"op": "collect", "bytes": MAX_BYTES, "entries": MAX_ENTRIES})
        while True:
            frame = await sandbox.receive(_SECONDS)
            if frame.get("op") != "archive":
                raise SandboxLost("the execution sandbox answered something that is no archive")
            if frame.get("done") is True:
                break
            archive.write(binascii.a2b_base64(str(frame.get("data", ""))))
            if archive.tell() > 2 * MAX_BYTES:
                raise SandboxLost("the execution sandbox sent more than it may")
    except (TimeoutError, binascii.Error) as error:
        archive.close()
        raise SandboxLost(f"the workspace could not be taken out of its sandbox: {error}") from None
    except BaseException:
        archive.close()
        raise
    if refused := str(frame.get("refused", "")):
        archive.close()
        return Workspace(refused=refused)
    return Workspace(archive)


async def restore(sandbox: Sandbox, workspace: Workspace) -> None:
    """Unpack into /work of a fresh execution sandbox. Raises SandboxLost."""
    if workspace.archive is None:
        return
    workspace.archive.seek(0)
    while piece := workspace.archive.read(_PIECE):
        data = binascii.b2a_base64(piece, newline=False).decode()
        await run_ours(sandbox, _APPEND.format(data=data), _SECONDS)
    await run_ours(sandbox, _UNPACK, _SECONDS)


async def run_ours(sandbox: Sandbox, code: str, seconds: float) -> str:
    """Run code of the host in an execution sandbox; what it printed.

    Raises SandboxLost; NotPrepared, one of them, when the code itself failed.
    """
    await sandbox.send({"op": "execute", "code": code, "seconds": seconds})
    try:
        frame = await sandbox.receive(seconds + _SECONDS)
    except TimeoutError as error:
        raise SandboxLost(f"the sandbox did not end a call of {seconds:g} s") from error
    if frame.get("op") != "observation" or frame.get("error"):
        said = str(frame.get("error", "")).strip().splitlines() or ["no observation"]
        raise NotPrepared(f"the sandbox could not be prepared: {said[-1][:200]}")
    return str(frame.get("stdout", ""))
