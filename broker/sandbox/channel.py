"""The host's end of a sandbox: strict frames over an asyncio stream, and an end that happens exactly once.

Must not know what the frames mean (but for the first one, `ready`), nor how a back end kills.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from broker.errors import SandboxLost
from broker.sandbox.protocol import HEADER, HOST_VALUES, ProtocolError, decode, encode, payload_length

START_SECONDS: Final = 60.0
"""A start takes a tenth of a second; this much only on a machine that is drowning."""
SEND_SECONDS: Final = 60.0
"""Process 1 takes a frame at once, unless it is frozen."""


class Channel:
    """Frames both ways. A frame that a timeout cut in half is finished by the next `receive`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._pending: asyncio.Task[dict[str, Any]] | None = None

    async def send(self, frame: Mapping[str, Any]) -> None:
        data = encode(frame, HOST_VALUES)
        try:
            self._writer.write(data)
            async with asyncio.timeout(SEND_SECONDS):
                await self._writer.drain()
        except TimeoutError as error:
            raise SandboxLost(f"the sandbox took no frame for {SEND_SECONDS:g} s") from error
        except OSError as error:
            raise SandboxLost(f"the sandbox is gone: {error}") from error

    async def receive(self, timeout: float | None = None) -> dict[str, Any]:
        task = self._pending or asyncio.ensure_future(self._read())
        self._pending = task
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:
            raise TimeoutError(f"no frame from the sandbox within {timeout} s")
        self._pending = None
        if task.cancelled():
            raise SandboxLost("the sandbox is closed")
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


class ChannelSandbox(ABC):
    """What both back ends' sandboxes share; see `base.Sandbox`."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._closing: asyncio.Task[None] | None = None

    async def attach(self, host_end: socket.socket) -> None:
        """Take over the connected socket and wait until process 1 says that it is ready."""
        try:
            reader, writer = await asyncio.open_connection(sock=host_end)  # buffers 128 KiB, or one frame
        except BaseException:
            host_end.close()
            raise
        self._channel = Channel(reader, writer)
        try:
            first = await self._channel.receive(START_SECONDS)
        except (SandboxLost, TimeoutError) as error:
            raise SandboxLost(f"a sandbox did not start: {self.complaint() or error}") from error
        if first != {"op": "ready"}:
            raise SandboxLost("a sandbox did not start: its first frame is not `ready`")

    def _open_channel(self) -> Channel:
        if self._channel is None or self._closing is not None:
            raise SandboxLost("the sandbox is closed")
        return self._channel

    async def send(self, frame: Mapping[str, Any]) -> None:
        await self._open_channel().send(frame)

    async def receive(self, timeout: float | None = None) -> dict[str, Any]:
        try:
            return await self._open_channel().receive(timeout)
        except SandboxLost as error:
            raise SandboxLost(f"{error} {self.complaint()}".rstrip()) from error

    async def responds(self, seconds: float = 5.0) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.send({"op": "ping"})
                await self.receive()  # whatever comes, process 1 sent it
        except (SandboxLost, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        self._closing = self._closing or asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)  # a cancelled caller must not leave half a sandbox

    async def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
        await self.destroy()

    @abstractmethod
    async def destroy(self) -> None:
        """Kill everything inside and release what the host holds; called once."""

    @abstractmethod
    def complaint(self) -> str:
        """The last thing the back end said about this sandbox, for an error message; may be empty."""

    @abstractmethod
    def oom_killed(self) -> bool: ...
