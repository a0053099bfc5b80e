"""The host's end of a sandbox: strict frames over a socket, and an end that happens exactly once.

Must not know what the frames mean (but for the first one, `ready`), nor how a back end kills.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, cast

from broker.errors import SandboxLost
from broker.sandbox.program_frames import read_request
from broker.sandbox.protocol import (
    HEADER,
    HOST_VALUES,
    PASSED_ON,
    ProtocolError,
    decode,
    encode,
    payload_length,
)

START_SECONDS: Final = 60.0
"""A start takes a tenth of a second; this much only on a machine that is drowning."""
SEND_SECONDS: Final = 60.0
"""Process 1 takes a frame at once, unless it is frozen."""
BUFFER: Final = 1 << 17
"""Bytes that may wait to be asked for, or one frame, if that is longer."""


class Channel(asyncio.Protocol):
    """Frames both ways. A frame that a timeout cut in half is finished by the next `receive`.

    A protocol and not a pair of streams: those make a task for each frame, a third of what an episode costs
    the host. Bytes become a frame only when somebody asks for it, and beyond one frame reading stops, so a
    sandbox that floods its channel fills its own end.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._bytes = bytearray()
        self._reading = True
        self._end: str | None = None
        """Why nothing more will come, once that is known."""
        self._news: asyncio.Future[None] | None = None
        """Set when bytes or the end have come; of the one who waits in `receive`."""
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        self._mind_the_buffer()
        self._tell()

    def eof_received(self) -> None:
        self._finish("the sandbox ended unexpectedly")

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish("the sandbox ended unexpectedly")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def send(self, frame: Mapping[str, Any]) -> None:
        data = encode(frame, HOST_VALUES)
        if self._end is not None or self._transport is None:
            raise SandboxLost("the sandbox is gone")
        self._transport.write(data)
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._writable.wait()
        except TimeoutError as error:
            raise SandboxLost(f"the sandbox took no frame for {SEND_SECONDS:g} s") from error

    async def receive(self, timeout: float | None = None) -> dict[str, Any]:
        if (frame := self._next()) is not None:
            return frame
        loop = asyncio.get_running_loop()
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            self._tell()

        # A timer of its own and not `asyncio.timeout`: every step of every program waits here.
        timer = None if timeout is None else loop.call_later(timeout, expire)
        try:
            while not expired:
                self._news = loop.create_future()
                await self._news
                if (frame := self._next()) is not None:
                    return frame
        finally:
            self._news = None
            if timer is not None:
                timer.cancel()
        raise TimeoutError(f"no frame from the sandbox within {timeout} s")

    def _wanted(self) -> int:
        """How many bytes make the first frame; a header that breaks the rules wants no more than it has."""
        if len(self._bytes) < HEADER:
            return HEADER
        try:
            return HEADER + self._length()
        except ProtocolError:
            return HEADER

    def _length(self) -> int:
        """What the first header announces. Raises ProtocolError."""
        # The mark in its first byte is looked at in `_read`; any other than 0 and 1 makes it too long.
        start = 1 if self._bytes[0] == PASSED_ON else 0
        return payload_length(self._bytes[start:HEADER])

    def _next(self) -> dict[str, Any] | None:
        """The first frame, None if it is not complete. Raises SandboxLost when it cannot come any more."""
        wanted = self._wanted()
        if len(self._bytes) < wanted:
            if self._end is not None:
                raise SandboxLost(self._end)
            return None
        try:
            self._length()
            payload = bytes(self._bytes[HEADER:wanted])
            return read_request(payload) if self._bytes[0] == PASSED_ON else decode(payload)
        except ProtocolError as error:
            raise SandboxLost(f"the sandbox sent a malformed frame: {error}") from error
        finally:
            del self._bytes[:wanted]
            self._mind_the_buffer()

    def _mind_the_buffer(self) -> None:
        """Read on while there is room, or while the first frame is not complete."""
        on = len(self._bytes) <= BUFFER or len(self._bytes) < self._wanted()
        if self._transport is None or self._end is not None or on is self._reading:
            return
        self._reading = on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _finish(self, why: str) -> None:
        self._end = self._end or why
        self._writable.set()
        self._tell()

    def close(self) -> None:
        self._finish("the sandbox is closed")
        if self._transport is not None:
            self._transport.close()


class ChannelSandbox(ABC):
    """What both back ends' sandboxes share; see `base.Sandbox`."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._closing: asyncio.Task[None] | None = None

    async def attach(self, host_end: socket.socket) -> None:
        """Take over the connected socket and wait until process 1 says that it is ready."""
        try:
            _, self._channel = await asyncio.get_running_loop().create_connection(Channel, sock=host_end)
        except BaseException:
            host_end.close()
            raise
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
                while await self.receive() != {"op": "pong"}:
                    pass
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
