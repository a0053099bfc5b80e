"""Process 1 of a sandbox: owns the host's channel, the worker process, its deadline and its output.

It cannot be read or signalled from inside (undumpable, no signal handler, process 1 of its namespace), runs
no untrusted code, and trusts nothing that the worker writes. Standard library only; every import here costs
start time in each sandbox. Must not know what an episode is.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time

from broker.sandbox import workers
from broker.sandbox.protocol import Feed, ProtocolError, decode, encode, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import SIG_DFL, SIGINT, SIGKILL, signal
    from typing import Any, NoReturn
else:
    from _signal import SIG_DFL, SIGINT, SIGKILL, signal

HEAD = TAIL = 48 * 1024
"""Bytes of output kept from the start and from the end of a call."""
GRACE = 1.0
"""Seconds between the interrupt at the deadline and the kill."""
_CHUNK = 1 << 16
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_TICK = 0.1
"""Seconds between two rounds of collecting dead children while a call runs."""


def _make_unreadable() -> None:
    """Without this, code with the same user id could open /proc/1/fd and forge frames to the host."""
    import _ctypes  # without the package around it, for speed

    library = _ctypes.dlopen(None, os.RTLD_NOW)  # pyright: ignore[reportArgumentType]
    prctl = _ctypes.dlsym(library, "prctl")
    _ctypes.call_function(prctl, (_PR_SET_DUMPABLE, 0, 0, 0, 0))
    if _ctypes.call_function(prctl, (_PR_GET_DUMPABLE, 0, 0, 0, 0)) != 0:
        raise OSError("process 1 stayed readable")


_victim = os.open("/proc/self/oom_score_adj", os.O_RDWR)
_own_score = os.read(_victim, 16)
"""Opened while process 1 may still open its own files."""


def offer_as_victim(offer: bool) -> None:
    """When memory runs out the kernel shall take a worker (born while `offer` held), not process 1."""
    os.pwrite(_victim, b"1000" if offer else _own_score, 0)


def _limit_worker(limits: dict[str, Any]) -> None:
    import resource

    def limit(kind: int, value: int) -> None:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))

    limit(resource.RLIMIT_AS, limits["memory_bytes"])
    limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    limit(resource.RLIMIT_NOFILE, limits["open_files"])
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


class Host:
    """Process 1's end of the channel. The host's end closing means: nobody wants this sandbox any more."""

    def __init__(self, descriptor: int, wall_seconds: float) -> None:
        self.descriptor = descriptor
        self._end = time.monotonic() + wall_seconds
        self._feed = Feed()
        self._frames: list[dict[str, Any]] = []

    def send(self, frame: dict[str, Any]) -> None:
        write_all(self.descriptor, encode(frame))

    def remaining(self) -> float:
        """Seconds until this sandbox ends by itself, whatever the host does."""
        left = self._end - time.monotonic()
        if left <= 0:
            os._exit(3)
        return left

    def pump(self) -> None:
        """Read what is there; ends the sandbox at the end of the stream."""
        data = os.read(self.descriptor, _CHUNK)
        if not data:
            os._exit(0)
        self._frames += self._feed.add(data)

    def waiting(self) -> dict[str, Any] | None:
        return self._frames.pop(0) if self._frames else None

    def receive(self) -> dict[str, Any]:
        """Wait for the host's next frame."""
        while (frame := self.waiting()) is None:
            if wait_readable([self.descriptor], self.remaining()):
                self.pump()
        return frame


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

    def __init__(self, body: Callable[[int, int, int], NoReturn], limits: dict[str, Any], host: Host) -> None:
        request_read, self.requests = os.pipe()
        self.replies, reply_write = os.pipe()
        self.output, output_write = os.pipe()
        self.status: int | None = None
        self.feed = Feed()
        offer_as_victim(True)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for descriptor in (host.descriptor, self.requests, self.replies, self.output, _victim):
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

    @staticmethod
    def _become(body: Callable[[int, int, int], NoReturn], limits: dict[str, Any], *pipes: int) -> NoReturn:
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

    def send(self, frame: dict[str, Any], seconds: float) -> None:
        """Raises TimeoutError (an OSError) when the worker does not read: it may be stopped on purpose."""
        view = memoryview(encode(frame))
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.requests, select.POLLOUT)
        while view:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError
            view = view[os.write(self.requests, view) :]

    def read_replies(self) -> list[dict[str, Any]]:
        return self.feed.add(os.read(self.replies, _CHUNK))

    def drain(self, capture: Capture, chunks: int = 1) -> None:
        """Take what the output pipe holds, without waiting."""
        try:
            while chunks and (data := os.read(self.output, _CHUNK)):
                capture.add(data)
                chunks -= 1
        except BlockingIOError:
            pass

    def end(self) -> str:
        """Kill it and all it started; says how it died in words."""
        self.reap()
        status = self.status
        kill_everything()
        for descriptor in (self.requests, self.replies, self.output, self.handle):
            os.close(descriptor)
        if status is None:
            return "was killed"
        code = os.waitstatus_to_exitcode(status)
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


class Execution:
    """Serves `execute` frames: one call at a time, a fresh worker after each loss."""

    def __init__(self, host: Host, limits: dict[str, Any]) -> None:
        self._host, self._limits = host, limits
        self._worker: Worker | None = None
        self._calls = 0
        """Replies carry the number of their call, so that a late one is not taken for the next."""

    def serve(self) -> NoReturn:
        while True:
            frame = self._host.receive()
            self._host.send(self._call(str(frame["code"]), float(frame["seconds"])))

    def _call(self, code: str, seconds: float) -> dict[str, Any]:
        worker = self._worker or Worker(workers.run_execution, self._limits, self._host)
        self._worker = worker
        self._calls += 1
        capture = Capture()
        reply, timed_out = self._await_reply(worker, code, seconds, capture)
        worker.drain(capture, chunks=64)
        lost = reply is None
        error = workers.clip_error(str(reply.get("error", ""))) if reply is not None else ""
        if lost:
            self._worker = None
            how = worker.end()
            error = (
                f"The Python process {how}. A fresh one was started: "
                "all variables are gone, files in /work stay."
            )
        if timed_out:
            error = f"TimeoutError: the call did not finish within {seconds:g} seconds.\n{error}".rstrip()
        stdout, truncated = capture.text()
        return {
            "op": "observation",
            "stdout": stdout,
            "error": error,
            "output_truncated": truncated,
            "worker_lost": lost,
            "timed_out": timed_out,
        }

    def _await_reply(
        self, worker: Worker, code: str, seconds: float, capture: Capture
    ) -> tuple[dict[str, Any] | None, bool]:
        """The worker's reply, or None when it is lost; and whether the deadline passed."""
        deadline = time.monotonic() + seconds
        interrupted = False
        try:
            worker.send({"id": self._calls, "code": code}, seconds + GRACE)
            while True:
                left = deadline + (GRACE if interrupted else 0.0) - time.monotonic()
                if left <= 0 and interrupted:
                    return None, True
                if left <= 0:
                    interrupted = True
                    os.kill(worker.pid, SIGINT)
                    continue
                watched = [worker.replies, worker.output, worker.handle, self._host.descriptor]
                ready = wait_readable(watched, min(left, _TICK, self._host.remaining()))
                worker.reap()
                if self._host.descriptor in ready:
                    self._host.pump()
                if worker.output in ready:
                    worker.drain(capture)
                if worker.replies in ready:
                    for reply in worker.read_replies():
                        if reply.get("id") == self._calls:
                            return reply, interrupted
                    if worker.status is not None:
                        return None, interrupted
                elif worker.handle in ready:
                    return None, interrupted
        except TimeoutError:
            return None, True
        except (ProtocolError, OSError):
            return None, interrupted


_REQUESTS = {"generate": "messages", "execute": "code", "submit": "text"}


def _request_error(frame: dict[str, Any]) -> str:
    """Why a frame of the program is no legal request; empty when it is one."""
    op = frame.get("op")
    if op == "end" and set(frame) == {"op"}:
        return ""
    if op == "error" and set(frame) == {"op", "kind", "traceback"}:
        return (
            ""
            if frame["kind"] in ("crash", "protocol") and isinstance(frame["traceback"], str)
            else "bad error"
        )
    if isinstance(op, str) and op in _REQUESTS and set(frame) == {"op", _REQUESTS[op]}:
        return ""
    return f"unknown request {str(op)[:40]!r}"


def serve_controller(host: Host, limits: dict[str, Any]) -> NoReturn:
    """Run one program and carry its requests to the host and the answers back."""
    start = host.receive()
    program, task = str(start["program"]), start["task"]

    def body(requests: int, replies: int, output: int) -> NoReturn:
        os.close(output)
        workers.run_program(requests, replies, program, task)

    worker = Worker(body, limits, host)
    host.send(_relay(host, worker))
    kill_everything()
    while True:
        host.receive()


def _relay(host: Host, worker: Worker) -> dict[str, Any]:
    """Pump frames until the program ends; returns its last one."""
    waiting = False
    try:
        while True:
            ready = wait_readable(
                [worker.replies, worker.handle, host.descriptor], min(1.0, host.remaining())
            )
            worker.reap()
            if host.descriptor in ready:
                host.pump()
                while (answer := host.waiting()) is not None:
                    waiting = False
                    worker.send(answer, host.remaining())
            frames = worker.read_replies() if worker.replies in ready else []
            for frame in frames:
                if fault := _request_error(frame):
                    return {"op": "error", "kind": "protocol", "traceback": fault}
                if frame["op"] in ("end", "error"):
                    return frame
                if waiting:
                    fault = "a second request before the answer to the first"
                    return {"op": "error", "kind": "protocol", "traceback": fault}
                waiting = True
                host.send(frame)
            if worker.status is not None and not frames:
                text = f"the program's process {worker.end()} without finishing run(task, api)"
                return {"op": "error", "kind": "crash", "traceback": text}
    except ProtocolError as error:
        return {"op": "error", "kind": "protocol", "traceback": f"malformed request: {error}"}
    except (BrokenPipeError, TimeoutError):
        return {"op": "error", "kind": "crash", "traceback": "the program closed its channel to the host"}


def _connect(path: str) -> int:
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    return connection.detach()


def main() -> NoReturn:
    """Settings come as one JSON argument: role, limits, and a `channel` number or a `socket` path."""
    settings: dict[str, Any] = decode(sys.argv[1].encode())
    signal(SIGINT, SIG_DFL)
    _make_unreadable()
    limits = settings["limits"]
    channel = settings["channel"] if "channel" in settings else _connect(settings["socket"])
    os.set_inheritable(channel, False)
    host = Host(channel, limits["wall_seconds"])
    host.send({"op": "ready"})
    if settings["role"] == "controller":
        serve_controller(host, limits)
    Execution(host, limits).serve()
