"""Process 1 of a sandbox: owns the host's channel, the worker process, its deadline and its output.

It cannot be read or signalled from inside (undumpable, no signal handler, process 1 of its namespace), runs
no untrusted code, and trusts nothing that the worker writes. Standard library only; every import here costs
start time in each sandbox. Must not know what an episode is.
"""

from __future__ import annotations

import os
import sys
import time

from broker.sandbox import kernel, workers
from broker.sandbox.child import (
    CHUNK,
    TICK,
    Capture,
    Worker,
    hold_own_score,
    kill_everything,
    wait_readable,
)
from broker.sandbox.protocol import (
    HEADER,
    HOST_VALUES,
    PASSED_ON,
    PING,
    Feed,
    ProtocolError,
    decode,
    encode,
    framed,
    write_all,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIG_DFL, SIGCONT, SIGINT, SIGSTOP, signal
    from typing import Any, NoReturn
else:
    from _signal import SIG_DFL, SIGCONT, SIGINT, SIGSTOP, signal

START_SECONDS = 30.0
"""A worker that has not shown after this long that it works never will."""
GRACE = 1.0
"""Seconds between the interrupt at the deadline and the kill."""
REHEARSALS = 2
"""Python makes code that ran twice faster, and what runs first meets the page faults that follow a fork."""


class Host:
    """Process 1's end of the channel. The host's end closing means: nobody wants this sandbox any more."""

    def __init__(self, descriptor: int, wall_seconds: float, output: int | None = None) -> None:
        self.descriptor = descriptor
        self._output = descriptor if output is None else output
        self._end = time.monotonic() + wall_seconds
        self._feed = Feed()
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Whole frames."""
        write_all(self._output, data)

    def remaining(self) -> float:
        """Seconds until this sandbox ends by itself, whatever the host does."""
        left = self._end - time.monotonic()
        if left <= 0:
            os._exit(3)
        return left

    def pump(self) -> None:
        """Read what is there; ends the sandbox at the end of the stream."""
        data = os.read(self.descriptor, CHUNK)
        if not data:
            os._exit(0)
        for payload in self._feed.payloads(data):
            if payload == PING:
                self.write(encode({"op": "pong"}))
            else:
                self._waiting.append(payload)

    def waiting(self) -> bytes | None:
        return self._waiting.pop(0) if self._waiting else None

    def receive(self) -> bytes:
        """Wait for the payload of the host's next frame."""
        while (payload := self.waiting()) is None:
            if wait_readable([self.descriptor], self.remaining()):
                self.pump()
        return payload


def _signal_all(number: int) -> None:
    """To every process but this one."""
    try:  # noqa: SIM105 - contextlib would cost start time in each sandbox
        os.kill(-1, number)
    except ProcessLookupError:
        pass


REHEARSED_CODE = "rows = open('/etc/passwd').read().split()\nprint(rows[0], len(rows))"
_LOST = "The Python process %s. A fresh one was started: all variables are gone, files in /work stay."


class Execution:
    """Serves `execute` frames: one call at a time, a fresh worker after each loss."""

    def __init__(self, host: Host, limits: dict[str, Any], rehearsals: int = REHEARSALS) -> None:
        self._host, self._limits = host, limits
        self._calls = 0
        """Replies carry the number of their call, so that a late one is not taken for the next."""
        # Born before it is needed, and made to run something: a sandbox in a pool has the time.
        self.worker: Worker | None = self._start()
        for _ in range(rehearsals):
            capture = Capture()
            if self._await_reply(self.worker, REHEARSED_CODE, START_SECONDS, capture)[0] is None:
                os._exit(4)
            self.worker.drain(capture, chunks=64)
            self._observation("", capture)

    def _start(self) -> Worker:
        worker = Worker(workers.run_execution, self._limits, self._host.descriptor)
        worker.watch_output()
        return worker

    def serve(self) -> NoReturn:
        while True:
            frame = decode(self._host.receive(), HOST_VALUES)
            if frame["op"] == "collect":
                self._collect(int(frame["bytes"]), int(frame["entries"]))
            else:
                self._host.write(self._call(frame["code"], float(frame["seconds"])))

    def _collect(self, most_bytes: int, most_entries: int) -> None:
        """Send /work as it is now. Nothing else runs meanwhile, and everything runs on afterwards."""
        from broker.sandbox.archive import send_archive  # seldom needed

        _signal_all(SIGSTOP)
        send_archive("/work", most_bytes, most_entries, lambda frame: self._host.write(encode(frame)))
        _signal_all(SIGCONT)

    def _bury(self) -> str:
        """End the worker, if it died since the last call; what is to be said about that."""
        if self.worker is None or self.worker.handle not in self.worker.watch(0.0):
            return ""
        if not self._calls:
            os._exit(4)  # nobody's code has run yet, so it is no observation
        how, self.worker = self.worker.end(), None
        return _LOST % how

    def _call(self, code: str, seconds: float) -> bytes:
        """The frame that answers it."""
        buried = self._bury()
        worker = self.worker or self._start()
        self.worker = worker
        self._calls += 1
        capture = Capture()
        reply, timed_out = self._await_reply(worker, code, seconds, capture)
        worker.drain(capture, chunks=64)
        lost = reply is None
        error = workers.clip_error(str(reply.get("error", ""))) if reply is not None else ""
        if lost:
            self.worker = None
            error = _LOST % worker.end()
        if timed_out:
            error = f"TimeoutError: the call did not finish within {seconds:g} seconds.\n{error}".rstrip()
        if buried:
            error = f"{buried}\n{error}".rstrip()
        return self._observation(error, capture, worker_lost=lost or bool(buried), timed_out=timed_out)

    @staticmethod
    def _observation(
        error: str, capture: Capture, *, worker_lost: bool = False, timed_out: bool = False
    ) -> bytes:
        stdout, truncated = capture.text()
        return encode(
            {
                "op": "observation",
                "stdout": stdout,
                "error": error,
                "output_truncated": truncated,
                "worker_lost": worker_lost,
                "timed_out": timed_out,
            }
        )

    def _await_reply(
        self, worker: Worker, code: str, seconds: float, capture: Capture
    ) -> tuple[dict[str, Any] | None, bool]:
        """The worker's reply, or None when it is lost; and whether the deadline passed."""
        deadline = time.monotonic() + seconds
        interrupted = False
        try:
            request = encode({"id": self._calls, "code": code}, HOST_VALUES)
            worker.send(request[HEADER:], seconds + GRACE)
            while True:
                left = deadline + (GRACE if interrupted else 0.0) - time.monotonic()
                if left <= 0 and interrupted:
                    return None, True
                if left <= 0:
                    interrupted = True
                    os.kill(worker.pid, SIGINT)
                    continue
                ready = worker.watch(min(left, TICK, self._host.remaining()))
                if self._host.descriptor in ready:
                    self._host.pump()
                if worker.output in ready:
                    worker.drain(capture)
                if worker.replies in ready:
                    for payload in worker.read_replies():
                        if (reply := decode(payload)).get("id") == self._calls:
                            return reply, interrupted
                elif worker.handle in ready:
                    return None, interrupted
        except TimeoutError:
            return None, True
        except (ProtocolError, OSError):
            return None, interrupted


REHEARSED_ANSWER = framed(b'{"op":"result","value":{"stdout":"","error":""}}')
REHEARSED_REQUESTS = 5
"""How many the program below makes."""


class _Rehearsal(Host):
    """In the host's place while a program runs that is nobody's: answers all that it asks with nothing."""

    def __init__(self) -> None:
        answers, self._answers = os.pipe()
        super().__init__(answers, START_SECONDS)

    def write(self, data: bytes) -> None:
        os.write(self._answers, REHEARSED_ANSWER)

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._answers)


REHEARSED_PROGRAM = """
def run(task, api):
    messages = [{'role': 'system', 'content': task['system']}, {'role': 'user', 'content': task['prompt']}]
    for code in ("print(1)", "print(2)"):
        messages.append({'role': 'assistant', 'content': api.generate(messages)['error']})
        messages.append({'role': 'user', 'content': str(api.execute(code)), 'source': 'tool'})
    api.submit('')
"""


def rehearsed_start() -> bytes:
    """The frame with which a program starts that is nobody's."""
    task: dict[str, Any] = {"prompt": "", "system": "", "files": [], "budgets": {"model_calls": 1}}
    return encode({"op": "rehearse", "program": REHEARSED_PROGRAM, "task": task})


def rehearse_program(worker: Worker, rehearsals: int = REHEARSALS) -> None:
    """Let a controller's worker run that program, and answer it."""
    start = rehearsed_start()[HEADER:]
    rehearsal = _Rehearsal()
    worker.attend(rehearsal.descriptor)
    for _ in range(rehearsals):
        if _relay(rehearsal, worker, start) != framed(b'{"op":"end"}', PASSED_ON):
            os._exit(4)
    rehearsal.close()


def serve_controller(host: Host, limits: dict[str, Any], rehearsals: int) -> NoReturn:
    """Run one program and carry its requests to the host and the answers back."""
    worker = Worker(workers.run_program, limits, host.descriptor)  # early, as in execution
    rehearse_program(worker, rehearsals)
    worker.attend(host.descriptor)
    start = host.receive()
    if worker.handle in worker.watch(0.0):
        os._exit(4)
    host.write(_relay(host, worker, start))
    kill_everything()
    while True:
        host.receive()


_LAST = (b'{"op":"end"', b'{"op":"error"')
"""How the frames begin that end a program. One that is written otherwise ends it at the host."""


def _relay(host: Host, worker: Worker, start: bytes) -> bytes:
    """Hand over the program, pump frames, unread, until it ends; returns the last one."""
    waiting = False
    try:
        worker.send(start, host.remaining())
        while True:
            ready = worker.watch(min(1.0, host.remaining()))
            if host.descriptor in ready:
                host.pump()
                while (answer := host.waiting()) is not None:
                    waiting = False
                    worker.send(answer, host.remaining())
            payloads = worker.read_replies() if worker.replies in ready else ()
            for payload in payloads:
                if payload.startswith(_LAST):
                    return framed(payload, PASSED_ON)
                if waiting:
                    return _failure("protocol", "a second request before the answer to the first")
                waiting = True
                host.write(framed(payload, PASSED_ON))
            if worker.handle in ready and worker.replies not in ready:  # a child of it holds the other end
                raise BrokenPipeError
    except ProtocolError as error:
        return _failure("protocol", f"malformed request: {error}")
    except (BrokenPipeError, TimeoutError):
        worker.reap()
        text = "the program closed its channel to the host"
        if worker.status is not None:
            text = f"the program's process {worker.end()} without finishing run(task, api)"
        return _failure("crash", text)


def _failure(kind: str, text: str) -> bytes:
    return encode({"op": "error", "kind": kind, "traceback": text})


def _connect(path: str) -> int:
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    return connection.detach()


def main() -> NoReturn:
    """Settings come as one JSON argument: role, limits, and a `channel` number, a `socket` path or `streams`.

    Streams are standard input and output; the worker gets neither. `filter`, in hexadecimal, is for back ends
    that do not set the system call filter themselves.
    """
    settings: dict[str, Any] = decode(sys.argv[1].encode())
    signal(SIGINT, SIG_DFL)
    close_up(bytes.fromhex(settings.get("filter", "")))
    output = None
    if "streams" in settings:
        channel, output = 0, 1
    else:
        channel = settings["channel"] if "channel" in settings else _connect(settings["socket"])
        os.set_inheritable(channel, False)
    serve(settings["role"], settings["limits"], channel, output)


def close_up(refused: bytes) -> None:
    """From here on nobody looks into process 1, and it can do no more than what it watches over."""
    hold_own_score()
    kernel.make_readable(False)
    if refused:
        kernel.refuse_calls(refused)


def serve(
    role: str,
    limits: dict[str, Any],
    channel: int,
    output: int | None = None,
    rehearsals: int = REHEARSALS,
) -> NoReturn:
    """Tell the host that this sandbox is ready, and do what it says until it goes."""
    host = Host(channel, limits["wall_seconds"], output)
    host.write(encode({"op": "ready"}))
    if role == "controller":
        serve_controller(host, limits, rehearsals)
    Execution(host, limits, rehearsals).serve()
