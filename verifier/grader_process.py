"""The grader's process as its owner sees it: started, asked within a deadline, gone with its owner.

Requests are answered in order, so several may be under way; whoever reads an answer hands it to the one that
has waited longest. Must not read references, nor import what does: they are the child's
(`verifier/grader_child.py`).
"""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Final

from verifier.grader_frames import FrameError, receive, send

_ROOT: Final = Path(__file__).resolve().parents[1]
_PASSED: Final = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "PYTHONHOME")
"""Of the environment; keys of services are none of its business."""
_LONG: Final = 1 << 16
"""Bytes from which a request is sent in a thread, so that the event loop goes on."""
_FRAME_SECONDS: Final = 5.0
"""For the rest of a frame that has begun to arrive."""

Frame = tuple[bytes, ...]


class GraderRefused(Exception):
    """The child says that it cannot grade this release; the message holds no answer."""


class _Waiter:
    """One request under way. `future` belongs to the event loop that waits; without one a thread does."""

    def __init__(self, future: "asyncio.Future[Frame] | None" = None) -> None:
        self.future = future
        self.result: Frame | FrameError | None = None

    def hand(self, result: Frame | FrameError) -> None:
        self.result = result
        if self.future is None:
            return
        loop = self.future.get_loop()
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            self._settle()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self.future is None or self.future.done():
            return
        if isinstance(self.result, FrameError):
            self.future.set_exception(self.result)
        elif self.result is not None:
            self.future.set_result(self.result)


class GraderProcess:
    """One child on one release. After a FrameError it is of no more use: end it."""

    def __init__(self, root: Path, references_digest: str, tasks_digest: str) -> None:
        """Starts it and does not wait. Raises FrameError when the system cannot."""
        search = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        command = [sys.executable, "-P", "-m", "verifier.grader_child"]
        ours, theirs = socket.socketpair()
        try:
            self._child = subprocess.Popen(
                [*command, str(root.resolve()), references_digest, tasks_digest, str(os.getpid())],
                env={**passed, "PYTHONPATH": search},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            ours.close()
            raise FrameError(f"could not be started: {error}") from None
        finally:
            theirs.close()
        self._connection = ours
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that watches the connection, while one of its futures is under way."""
        self._version: str | None = None
        self._end = weakref.finalize(self, _end, self._child, ours, os.getpid())

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def ready(self) -> bool:
        return self._version is not None

    def wait_until_ready(self, seconds: float) -> str:
        """The version of its grading code. Raises GraderRefused or FrameError."""
        with self._lock:
            if self._version is None:
                match receive(self._connection, seconds):
                    case (b"ready", version):
                        self._version = version.decode()
                    case (b"refused", why):
                        raise GraderRefused(why.decode("utf-8", "replace"))
                    case _:
                        raise FrameError("sent what is no greeting")
            return self._version

    def ask(self, request: Frame, seconds: float) -> Frame:
        """One frame for one frame."""
        deadline = time.monotonic() + seconds
        waiter = _Waiter()
        self._send(request, waiter, seconds)
        while waiter.result is None:
            with self._lock:
                if waiter.result is None:
                    self._read(max(0.001, deadline - time.monotonic()))
        if isinstance(waiter.result, FrameError):
            raise waiter.result
        return waiter.result

    async def ask_aside(self, request: Frame, seconds: float) -> Frame:
        """As `ask`, while the event loop goes on."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future())
        assert waiter.future is not None
        if sum(map(len, request)) < _LONG:
            self._send(request, waiter, seconds)
        else:
            await asyncio.to_thread(self._send, request, waiter, seconds)
        self._watch(loop)
        late = loop.call_later(seconds, waiter.hand, FrameError("did not answer in time"))
        try:
            return await waiter.future
        finally:
            late.cancel()
            self._unwatch(loop)

    def end(self) -> None:
        """Return when it is gone; who still waits is told. Idempotent.

        In a fork of the owner it only lets go of its end.
        """
        with self._lock:
            self._fail(FrameError("was ended"))
            if self._loop is not None and not self._loop.is_closed():
                self._forget(self._loop)
            self._end()

    def _send(self, request: Frame, waiter: _Waiter, seconds: float) -> None:
        with self._lock:
            send(self._connection, request, seconds)
            self._waiting.append(waiter)

    def _read(self, seconds: float) -> None:
        """Read one answer and hand it over; the lock is held. A failure is everybody's."""
        try:
            answer = receive(self._connection, seconds)
        except FrameError as error:
            self._fail(error)
            return
        if self._waiting:
            self._waiting.popleft().hand(answer)

    def _fail(self, error: FrameError) -> None:
        while self._waiting:
            self._waiting.popleft().hand(error)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = loop
                loop.add_reader(self._connection, self._on_readable)

    def _unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._loop is loop and not any(w.future and not w.future.done() for w in self._waiting):
                self._forget(loop)

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = None
        loop.remove_reader(self._connection)

    def _on_readable(self) -> None:
        with self._lock:
            self._read(_FRAME_SECONDS)


def _end(child: "subprocess.Popen[bytes]", connection: socket.socket, owner: int) -> None:
    connection.close()
    if os.getpid() == owner:
        child.kill()
        child.wait()
