"""The host's end of a sandbox's channel, over an asyncio stream. Must not know what the frames mean."""

import asyncio
from collections.abc import Mapping
from typing import Any

from broker.errors import SandboxLost
from broker.sandbox.protocol import HEADER, ProtocolError, decode, encode, payload_length


class Channel:
    """Strict frames both ways. A frame that is cut by a timeout is finished by the next `receive`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._pending: asyncio.Task[dict[str, Any]] | None = None

    async def send(self, frame: Mapping[str, Any]) -> None:
        self._writer.write(encode(frame))
        try:
            await self._writer.drain()
        except OSError as error:
            raise SandboxLost(f"the sandbox is gone: {error}") from error

    async def receive(self, timeout: float | None = None) -> dict[str, Any]:
        task = self._pending or asyncio.ensure_future(self._read())
        self._pending = task
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:
            raise TimeoutError(f"no frame from the sandbox within {timeout} s")
        self._pending = None
        return task.result()

    async def _read(self) -> dict[str, Any]:
        try:
            length = payload_length(await self._reader.readexactly(HEADER))
            return decode(await self._reader.readexactly(length))
        except ProtocolError as error:
            raise SandboxLost(f"the sandbox sent a malformed frame: {error}") from error
        except (OSError, EOFError) as error:
            raise SandboxLost("the sandbox ended unexpectedly") from error

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        self._writer.close()
