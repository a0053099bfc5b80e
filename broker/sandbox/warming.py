"""What a zygote does before its first child: all that process 1 and its worker rehearse, but in itself.

Its children so inherit modules that are loaded and code that ran, instead of doing the same once each. What
the rehearsals leave in the zygote's process is undone, descriptors, streams and signals included. Runs
inside: standard library only. Must not know how a child is closed off.
"""

from __future__ import annotations

import builtins
import os
import sys

from broker.sandbox import child, kernel, supervisor, workers
from broker.sandbox.protocol import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIG_DFL, SIGINT, SIGKILL, signal
    from typing import Any
else:
    from _signal import SIG_DFL, SIGINT, SIGKILL, signal

_TIMES = 3
"""One more than a started process 1 rehearses: that is what its children are spared."""
_NEVER = 1e9


def warm(role: str, limits: dict[str, Any], proc: str) -> None:
    """`proc`: where this process finds itself. Leaves nothing open but the handle of its own score."""
    kernel.load()
    child.hold_own_score(proc)
    before = _descriptors(proc)
    _as_worker(role)
    _as_process_1(role, limits)
    for descriptor in _descriptors(proc) - before:
        os.close(descriptor)


def _descriptors(proc: str) -> set[int]:
    found = {int(name) for name in os.listdir(f"{proc}/self/fd")}  # noqa: PTH208 - pathlib starts slowly
    return {number for number in found if _is_open(number)}


def _is_open(number: int) -> bool:
    """The listing names its own descriptor, too."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _as_worker(role: str) -> None:
    """Run the worker's loop here, on requests that end after a few."""
    requests, ours = os.pipe()
    theirs, replies = os.pipe()
    for _ in range(_TIMES):
        for data in _requests_of(role):
            os.write(ours, data)
    os.close(ours)
    streams, main, path = (sys.stdin, sys.stdout, sys.stderr), sys.modules["__main__"], list(sys.path)
    names = dict(builtins.__dict__)
    kept = [os.dup(number) for number in range(3)]
    run = workers.run_program if role == "controller" else workers.run_execution
    try:
        run(requests, replies, os.open(os.devnull, os.O_RDWR))
    except EOFError:
        pass
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
        (sys.stdin, sys.stdout, sys.stderr), sys.modules["__main__"], sys.path[:] = streams, main, path
        sys.modules.pop("harness", None)
        builtins.__dict__.clear()
        builtins.__dict__.update(names)
        signal(SIGINT, SIG_DFL)
    os.close(theirs)


def _requests_of(role: str) -> list[bytes]:
    """Frames for one rehearsal of a worker."""
    if role == "controller":
        return [supervisor.rehearsed_start()] + [supervisor.REHEARSED_ANSWER] * supervisor.REHEARSED_REQUESTS
    return [encode({"id": 0, "code": supervisor.REHEARSED_CODE})]


def _as_process_1(role: str, limits: dict[str, Any]) -> None:
    """Have a worker as process 1 has one, and rehearse with it."""
    inner, outer = os.pipe()
    host = supervisor.Host(inner, _NEVER, outer)
    if role == "controller":
        worker = child.Worker(workers.run_program, limits, inner)
        supervisor.rehearse_program(worker, _TIMES)
    else:
        worker = supervisor.Execution(host, limits, _TIMES).worker
        assert worker is not None
    os.kill(worker.pid, SIGKILL)
    os.waitpid(worker.pid, 0)
