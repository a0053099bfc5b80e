"""The worker process as process 1 sees it: born under limits, watched, killed with all it started.

Runs inside the sandbox, in the supervisor: standard library only, and nothing that starts slowly. Trusts
nothing that the worker writes. Must not know what runs in the worker.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import time

from broker.sandbox.protocol import Feed, framed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import SIGKILL
    from typing import Any, NoReturn

    Body = Callable[[int, int, int], NoReturn]
    """Reads requests, writes replies, has somewhere to print: three descriptors, in this order."""
else:
    from _signal import SIGKILL

HEAD = TAIL = 48 * 1024
"""Bytes of output kept from the start and from the end of a call."""
CHUNK = 1 << 16
TICK = 0.1
"""Seconds between two rounds of collecting dead children while something runs."""

_victim = -1
"""Process 1's own score, opened while it may still open its own files."""
_own_score = b""


def hold_own_score(proc: str = "/proc") -> None:
    """Before the first worker is born; again in a process that was forked from the one that did it."""
    global _victim, _own_score
    if _victim >= 0:
        os.close(_victim)
    _victim = os.open(f"{proc}/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    _own_score = os.read(_victim, 16)


def offer_as_victim(offer: bool) -> None:
    """When memory runs out the kernel shall take a worker (born while `offer` held), not process 1."""
    os.pwrite(_victim, b"1000" if offer else _own_score, 0)


def _limit_worker(limits: dict[str, Any]) -> None:
    def limit(kind: int, value: int) -> None:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))

    limit(resource.RLIMIT_AS, limits["memory_bytes"])
    limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    limit(resource.RLIMIT_NOFILE, limits["open_files"])
    # One byte and not none: only this keeps the kernel from calling a crash reporter of the host's.
    limit(resource.RLIMIT_CORE, 1)
    if limits["count_processes"]:
        limit(resource.RLIMIT_NPROC, limits["processes"])
    if limits["cpu_seconds"] is not None:
        limit(resource.RLIMIT_CPU, limits["cpu_seconds"])


class Capture:
    """The head and the rolling tail of a byte stream; the middle is counted and dropped."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room else data
        if len(self._tail) > 2 * TAIL:
            self._trim()

    def _trim(self) -> None:
        excess = max(0, len(self._tail) - TAIL)
        self._dropped += excess
        del self._tail[:excess]

    def text(self) -> tuple[str, bool]:
        """The kept text and whether anything was dropped."""
        self._trim()
        marker = b"\n[... %d bytes of output dropped ...]\n" % self._dropped if self._dropped else b""
        return (self._head + marker + self._tail).decode("utf-8", "replace"), bool(self._dropped)


def wait_readable(descriptors: list[int], seconds: float) -> list[int]:
    """Which descriptors are readable or hung up, waiting at most so long."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]


def kill_everything() -> None:
    """Kill and collect every other process of this sandbox, whatever session it fled to."""
    while True:
        try:  # noqa: SIM105 - contextlib would cost start time in each sandbox
            os.kill(-1, SIGKILL)
        except ProcessLookupError:
            pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


class Worker:
    """The one process in which untrusted code runs, and the pipes to it."""

    def __init__(
        self, body: Callable[[int, int, int], NoReturn], limits: dict[str, Any], channel: int
    ) -> None:
        request_read, self.requests = os.pipe()
        self.replies, reply_write = os.pipe()
        self._channel = channel
        self.output, output_write = os.pipe()
        self.status: int | None = None
        self.feed = Feed()
        offer_as_victim(True)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for descriptor in (channel, self.requests, self.replies, self.output, _victim):
                    os.close(descriptor)
                self._become(body, limits, request_read, reply_write, output_write)
            finally:
                os._exit(70)
        offer_as_victim(False)
        for descriptor in (request_read, reply_write, output_write):
            os.close(descriptor)
        os.set_blocking(self.output, False)
        os.set_blocking(self.requests, False)
        self.handle = os.pidfd_open(self.pid)
        self._next_round = 0.0
        self._watched = select.poll()
        for descriptor in (self.handle, self.replies, channel):
            self._watched.register(descriptor, select.POLLIN)

    def watch_output(self) -> None:
        self._watched.register(self.output, select.POLLIN)

    def attend(self, channel: int) -> None:
        """Watch another channel than before."""
        self._watched.unregister(self._channel)
        self._watched.register(channel, select.POLLIN)
        self._channel = channel

    def watch(self, seconds: float) -> list[int]:
        """Which of handle, replies, channel (and output) have news, waiting at most so long.

        If it ended, what it wrote before is seen in the same look.
        """
        if (now := time.monotonic()) >= self._next_round:
            self.reap()
            self._next_round = now + TICK
        return [descriptor for descriptor, _ in self._watched.poll(max(0.0, seconds) * 1000)]

    @staticmethod
    def _become(body: Body, limits: dict[str, Any], *pipes: int) -> NoReturn:
        _limit_worker(limits)
        # Numbers that nobody hits by counting up from 3; not inherited by programs the code starts.
        base = 40 + os.urandom(1)[0] % max(1, limits["open_files"] - 60)
        private = [fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, base) for pipe in pipes]
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        for descriptor in {null, *pipes} - {0, 1, 2, *private}:
            os.close(descriptor)
        body(private[0], private[1], private[2])

    def reap(self) -> None:
        """Collect dead children: the worker's status, and orphans that were handed to process 1."""
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self.pid:
                    self.status = found[1]
        except ChildProcessError:
            pass

    def send(self, payload: bytes, seconds: float) -> None:
        """Raises TimeoutError (an OSError) when the worker does not read: it may be stopped on purpose.

        Ends the sandbox when the host goes meanwhile.
        """
        data = framed(payload)
        try:
            written = os.write(self.requests, data)
        except BlockingIOError:
            written = 0
        if written < len(data):
            self._send_rest(memoryview(data)[written:], time.monotonic() + seconds)

    def _send_rest(self, view: memoryview, end: float) -> None:
        poll = select.poll()
        poll.register(self.requests, select.POLLOUT)
        poll.register(self._channel, 0)  # only its end
        while view:
            ready = dict(poll.poll(max(0.0, end - time.monotonic()) * 1000))
            if self._channel in ready:
                os._exit(0)
            if not ready:
                raise TimeoutError
            view = view[os.write(self.requests, view) :]

    def read_replies(self) -> list[bytes]:
        """Payloads of frames. Raises BrokenPipeError (an OSError) when no process holds the other end."""
        data = os.read(self.replies, CHUNK)
        if not data:
            wait_readable([self.handle], 0.2)  # a process that ends closes its files a little earlier
            raise BrokenPipeError
        return self.feed.payloads(data)

    def drain(self, capture: Capture, chunks: int = 1) -> None:
        """Take what the output pipe holds, without waiting."""
        try:
            while chunks and (data := os.read(self.output, CHUNK)):
                capture.add(data)
                chunks -= 1
        except BlockingIOError:
            pass

    def end(self) -> str:
        """Kill it and all it started; says how it died in words."""
        self.reap()
        status = self.status
        kill_everything()
        self.close()
        if status is None:
            return "was killed"
        code = os.waitstatus_to_exitcode(status)
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

    def close(self) -> None:
        """Let go of it, dead or alive."""
        for descriptor in (self.requests, self.replies, self.output, self.handle):
            os.close(descriptor)
