"""A small process beside a host: when the host dies, however it dies, what it left is removed at once.

Sandboxes end by themselves when their host's end of the channel closes; dead containers, containers that
never started, memory groups and sockets do not. It also removes containers past their deadline while the host
lives. Must not know what a sandbox runs.
"""

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.sandbox.cgroup import sweep_groups
from broker.sandbox.labels import sweep_folders, sweep_processes

_ROOT: Final = Path(__file__).parents[2]
_ROUNDS: Final = (0.05,) * 40 + (1.0,) * 8
"""Seconds between rounds after the host's death: a request that was on its way may still bear a container."""
_ORDERLY: Final = b"."
_DEADLINE_SECONDS: Final = 60.0
"""How often deadlines are looked at."""
_lock = threading.Lock()
_Key = tuple[int, bool, str | None]
_watched: dict[_Key, subprocess.Popen[bytes]] = {}


def keep_watch(containers: bool) -> None:
    """Start the watchdog of this process, once for each kind and daemon; a fork gets its own."""
    with _lock:
        key = (os.getpid(), containers, os.environ.get("DOCKER_HOST") if containers else None)
        if key in _watched and _watched[key].poll() is None:
            return
        start = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from broker.sandbox import watchdog"
        # Without containers it needs no package, and so a third of the memory.
        command = [sys.executable, "-I", *(() if containers else ("-S",)), "-c", f"{start}; watchdog.main()"]
        command += [str(os.getpid()), "containers" if containers else ""]
        # The pipe ends with this process; a session of its own, so that Ctrl-C is not for it.
        _watched[key] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        atexit.register(_tell, key)


def _tell(key: _Key) -> None:
    """At an orderly end nothing is on its way any more."""
    pipe = _watched[key].stdin
    if key[0] == os.getpid() and pipe is not None:
        with contextlib.suppress(OSError):
            pipe.write(_ORDERLY)
            pipe.close()


def _sweeps(containers: bool) -> list[Callable[[], int]]:
    found = [sweep_processes, sweep_groups, sweep_folders]
    if containers:
        # Imported before it is needed: a second of work, which a host in trouble may not have left.
        from broker.sandbox.containers import sweep_containers

        found.insert(0, sweep_containers)
    return found


def _wait_for_the_end(host: int, look: Callable[[], object]) -> bool:
    """Until the host is dead; whether it ended in good order.

    The pipe alone does not tell: a fork of the host may hold it open.
    """
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with contextlib.suppress(ProcessLookupError):
        poll.register(os.pidfd_open(host), select.POLLIN)
        while not poll.poll(_DEADLINE_SECONDS * 1000):
            look()
    orderly = bool(select.select([0], [], [], 0)[0]) and os.read(0, 1) == _ORDERLY
    end = time.monotonic() + 5.0
    # The pipe closes a moment before the process counts as dead.
    while os.getppid() == host and time.monotonic() < end:
        time.sleep(0.005)
    return orderly


def main() -> None:
    """Arguments: the host's process id, and `containers` or nothing."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    host, containers = int(sys.argv[1]), sys.argv[2] == "containers"
    sweeps = _sweeps(containers)

    def sweep() -> None:
        for one in sweeps:
            # A round that fails is followed by another.
            with contextlib.suppress(Exception):
                one()

    orderly = _wait_for_the_end(host, sweep)
    for pause in _ROUNDS[:3] if orderly else _ROUNDS:
        sweep()
        time.sleep(pause)
