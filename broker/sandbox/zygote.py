"""The zygote: a process that has loaded what process 1 of a sandbox needs, and forks one for each request.

Starting Python and bubblewrap for each sandbox costs more than an episode. The zygote is started by
bubblewrap, once for a role and what is shown to it, in name spaces of its own; its children go on into fresh
ones. It holds no task, no secret and no channel: what a request brings goes to the child and is closed here.

What owns what: in its own user name space the zygote has the right to make others and to mount, and no right
outside. There each child makes its name spaces and mounts. Then it enters a user name space below, where it
has no right to any of those, and gives up what rights it has there. So code in one sandbox stands to another
as it does when bubblewrap made both.

Runs inside: standard library only. Must not know what a supervisor does.
"""

from __future__ import annotations

import fcntl
import gc
import os
import sys

from broker.sandbox import kernel, supervisor
from broker.sandbox.protocol import decode
from broker.sandbox.warming import warm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import SIG_DFL, SIG_IGN, SIGCHLD, SIGINT, signal
    from socket import AF_INET, MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOCK_DGRAM, SOL_SOCKET, socket
    from typing import Any, NoReturn
else:
    from _signal import SIG_DFL, SIG_IGN, SIGCHLD, SIGINT, signal
    from _socket import AF_INET, MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOCK_DGRAM, SOL_SOCKET, socket

_REHEARSALS = 1
"""Of a child's own: its code ran before, so this is for the pages that it will write to."""
_DESCRIPTOR = 4
_MOST_DESCRIPTORS = 8
_SET_INTERFACE_FLAGS = 0x8914
_UP = 1


class Zygote:
    """Settings: role, user, limits, system call filter, size of shared memory, the number of the socket on
    which requests come, and where the zygote's own processes are mounted, which no child keeps."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._filter = bytes.fromhex(settings["filter"])
        self._requests = socket(fileno=settings["requests"])
        self._processes = os.open(f"{settings['proc']}/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        warm(settings["role"], settings["limits"], settings["proc"])
        kernel.make_readable(False)

    def serve(self) -> NoReturn:
        """Until the host's end closes."""
        signal(SIGCHLD, SIG_IGN)  # so that nobody has to collect the dead
        gc.collect()
        gc.freeze()
        hello = os.pidfd_open(os.getpid())
        send_descriptor(self._requests, hello)
        os.close(hello)
        while True:
            message, ancillary, _, _ = self._requests.recvmsg(1, _MOST_DESCRIPTORS * 8 + 16, MSG_CMSG_CLOEXEC)
            if not message:
                os._exit(0)
            self._bear(descriptors_in(ancillary))

    def _bear(self, given: list[int]) -> None:
        """Fork one sandbox. If that fails, its host sees the channel close, and the reason beside it."""
        try:
            # A new name space of processes before the birth, for the child shall be its process 1.
            kernel.unshare(kernel.NEW_PROCESSES)
            try:
                if os.fork() == 0:
                    _live(self._grow_up, given)
            finally:
                kernel.enter(self._processes, kernel.NEW_PROCESSES)
        except OSError as error:
            _complain(given[1], error)
        finally:
            for descriptor in given:
                os.close(descriptor)

    def _grow_up(self, channel: int, complaints: int, *groups: int) -> NoReturn:
        self._requests.close()
        os.close(self._processes)
        _take_streams(complaints)
        _introduce(channel)
        signal(SIGCHLD, SIG_DFL)
        os.setsid()
        for group in groups:
            os.write(group, b"0")
            os.close(group)
        self._leave()
        _enter_user_space(self._settings["user"])
        supervisor.close_up(self._filter)
        supervisor.serve(self._settings["role"], self._settings["limits"], channel, rehearsals=_REHEARSALS)

    def _leave(self) -> None:
        """Into fresh name spaces, with nothing to write to but fresh file systems."""
        kernel.unshare(
            kernel.NEW_MOUNTS | kernel.NEW_CGROUP | kernel.NEW_UTS | kernel.NEW_IPC | kernel.NEW_NETWORK
        )
        _raise_loopback()
        closed = kernel.NO_SUID | kernel.NO_DEVICES
        # The kernel demands that one is in sight already.
        kernel.mount("proc", "/proc", closed | kernel.NO_PROGRAMS)
        kernel.unmount(self._settings["proc"])
        terminals = "newinstance,ptmxmode=0666,mode=620"
        kernel.mount("devpts", "/dev/pts", kernel.NO_SUID | kernel.NO_PROGRAMS, terminals)
        size = self._settings["limits"]["file_bytes"]
        for place, most in (("/dev/shm", self._settings["shared_memory"]), ("/tmp", size), ("/work", size)):
            kernel.mount("tmpfs", place, closed, f"mode=1777,size={most}")
        os.chdir("/work")


def _live(life: Callable[..., NoReturn], given: list[int]) -> NoReturn:
    """In a child, which must never come back to where its parent goes on."""
    try:
        life(*given)
    except BaseException as error:
        _complain(2, error)
    finally:
        os._exit(1)


def _complain(descriptor: int, error: BaseException) -> None:
    os.write(descriptor, f"{type(error).__name__}: {error}\n".encode())


def descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The open files that came with a message."""
    data = b"".join(part for _, kind, part in ancillary if kind == SCM_RIGHTS)
    return [
        int.from_bytes(data[start : start + _DESCRIPTOR], sys.byteorder)
        for start in range(0, len(data), _DESCRIPTOR)
    ]


def send_descriptor(connection: socket, descriptor: int) -> None:
    """One byte, and an open file with it."""
    packed = descriptor.to_bytes(_DESCRIPTOR, sys.byteorder)
    connection.sendmsg([b"."], [(SOL_SOCKET, SCM_RIGHTS, packed)])


def _take_streams(complaints: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(complaints, 2)
    os.close(null)
    os.close(complaints)


def _introduce(channel: int) -> None:
    """Give the host a handle of this process, by which it can end it whatever happens here."""
    handle = os.pidfd_open(os.getpid())
    connection = socket(fileno=channel)
    send_descriptor(connection, handle)
    connection.detach()
    os.close(handle)


def _raise_loopback() -> None:
    request = b"lo".ljust(16, b"\0") + _UP.to_bytes(2, sys.byteorder) + bytes(22)
    connection = socket(AF_INET, SOCK_DGRAM)
    fcntl.ioctl(connection.fileno(), _SET_INTERFACE_FLAGS, request)
    connection.close()


def _enter_user_space(user: int) -> None:
    """One in which there is one user and no right to anything, and below which there is none."""
    kernel.unshare(kernel.NEW_USER)
    kernel.make_readable(True)  # nobody else is here, and else these files were closed
    _write("/proc/self/setgroups", "deny")
    for name in ("uid_map", "gid_map"):
        _write(f"/proc/self/{name}", f"{user} {user} 1")
    _write("/proc/sys/user/max_user_namespaces", "0")
    kernel.drop_capabilities()


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def main() -> NoReturn:
    """Settings come as one JSON argument."""
    settings: dict[str, Any] = decode(sys.argv[1].encode())
    signal(SIGINT, SIG_DFL)
    Zygote(settings).serve()
