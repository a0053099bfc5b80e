"""The host's side of the zygotes: one for each kind of sandbox, which it asks for children and replaces.

Where zygotes cannot work (a kernel, or rules of a machine, that allow bubblewrap what they refuse others),
sandboxes are started one by one, and it is known why. Must not know what is said on a sandbox's channel.
"""

import array
import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from broker.errors import SandboxLost
from broker.sandbox.base import Role

BIRTH_SECONDS: Final = 30.0
"""A child introduces itself a few milliseconds after it was asked for; that of a frozen zygote never does."""
_MOST_ZYGOTES: Final = 8
"""Above that the one that was asked for longest ago goes. A run needs two, each of some MiB."""
_MOST_DEATHS: Final = 2
"""A dead zygote is replaced. When the next one dies too, sandboxes are started one by one."""
_END_SECONDS: Final = 1.0


class Kind(NamedTuple):
    """What all children of one zygote have in common."""

    role: Role
    shown: tuple[tuple[str, str], ...]
    """Where folders of the host appear inside."""


class Zygote:
    """One warm process, as the host holds it."""

    def __init__(self, command: Callable[[int], list[str]], environment: Mapping[str, str]) -> None:
        """Does not wait: requests wait in the socket until the zygote is there. OSError when it cannot be."""
        self.bore = False
        """Whether a child of it ever became a sandbox."""
        self._killed = False
        self._requests, inner_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.setblocking(False)
        self._complaints = os.memfd_create("complaints", os.MFD_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                command(inner_end.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                pass_fds=(inner_end.fileno(),),
                env=environment,
                start_new_session=True,  # Ctrl-C is for the host
            )
        except OSError:
            self.end()
            raise
        finally:
            inner_end.close()

    def ask(self, descriptors: Sequence[int]) -> None:
        """Request one child, to which these open files go. OSError when it is gone, or takes no more."""
        rights = array.array("i", descriptors)
        self._requests.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def lives(self) -> bool:
        """Whether its end of the socket is open."""
        if self._killed:  # which takes a moment
            return False
        poll = select.poll()
        poll.register(self._requests, 0)
        return not poll.poll(0)

    def complaint(self) -> str:
        """The last line that it or bubblewrap wrote."""
        return last_line(self._complaints)

    def kill(self) -> None:
        """For one that is frozen. What it bore lives on."""
        if self._killed:
            return
        self._killed = True
        with contextlib.suppress(OSError):
            # It said hello with a handle of itself, unless it never came so far, and then bore nobody.
            _, handles, _, _ = socket.recv_fds(self._requests, 1, 1, socket.MSG_CMSG_CLOEXEC)
            for handle in handles:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)
            return
        with contextlib.suppress(OSError):
            own = self._process.pid
            for child in Path(f"/proc/{own}/task/{own}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)

    def end(self) -> None:
        """It ends by itself when this end closes; bubblewrap waits for the last of its children."""
        self._requests.close()
        if self._complaints >= 0:
            os.close(self._complaints)
            self._complaints = -1

    def ended(self) -> bool:
        """Whether nothing of it is left, bubblewrap included."""
        return self._process.poll() is not None


class Nursery:
    """The zygotes of one factory. For several threads."""

    def __init__(
        self, command: Callable[[Kind, int], list[str]], environment: Mapping[str, str], fault: str = ""
    ) -> None:
        """`command`: that which starts a zygote, to which this descriptor will be open. `fault`: as below."""
        self._command = command
        self._environment = environment
        self._zygotes: dict[Kind, Zygote] = {}
        """Most recently asked last."""
        self._deaths: dict[Kind, int] = {}
        self._ending: list[Zygote] = []
        self._lock = threading.Lock()
        self.fault = fault
        """Why sandboxes are started one by one; empty while they need not be."""

    def find(self, kind: Kind) -> Zygote | None:
        """The zygote of this kind, new if there was none; None where none can work."""
        with self._lock:
            self._bury(kind)
            if self.fault:
                return None
            zygote = self._zygotes.pop(kind, None) or self._start(kind)
            if zygote is None:
                return None
            self._zygotes[kind] = zygote
            while len(self._zygotes) > _MOST_ZYGOTES:
                self._remove(next(iter(self._zygotes)))
            return zygote

    def _start(self, kind: Kind) -> Zygote | None:
        try:
            return Zygote(lambda requests: self._command(kind, requests), self._environment)
        except OSError as error:
            self.fault = str(error)
            return None

    def failed(self, kind: Kind, zygote: Zygote, error: SandboxLost) -> bool:
        """After a child of it did not become a sandbox; whether one shall be started in another way now."""
        with self._lock:
            if self.fault:
                return True
            if not zygote.bore:
                self._give_up(str(error))
                return True
            self._bury(kind)
            return False

    def _give_up(self, fault: str) -> None:
        self.fault = fault
        for kind in list(self._zygotes):
            self._remove(kind)

    def _bury(self, kind: Kind) -> None:
        """Let go of this kind's zygote, if it died after it had borne; one that never did is another case."""
        zygote = self._zygotes.get(kind)
        if zygote is None or not zygote.bore or zygote.lives():
            return
        self._remove(kind)
        self._deaths[kind] = self._deaths.get(kind, 0) + 1
        if self._deaths[kind] == _MOST_DEATHS:
            self._give_up(f"a zygote died {_MOST_DEATHS} times")

    def _remove(self, kind: Kind) -> None:
        zygote = self._zygotes.pop(kind)
        zygote.end()
        self._ending = [one for one in (*self._ending, zygote) if not one.ended()]

    async def close(self) -> None:
        """End all zygotes; those whose children live on are left to end with them."""
        with self._lock:
            self._give_up(self.fault or "the factory is closed")
        end = time.monotonic() + _END_SECONDS
        for zygote in self._ending:
            while not zygote.ended() and time.monotonic() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def last_line(complaints: int) -> str:
    """Of a memory file; empty for none."""
    if complaints < 0:
        return ""
    start = max(0, os.fstat(complaints).st_size - 8_192)
    lines = os.pread(complaints, 8_192, start).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
