"""System calls that Python has no function for, as far as process 1 and the zygote need them.

Runs inside the sandbox: standard library only, and `_ctypes` without the package around it, which starts
slowly. Must not know in which order a sandbox is closed off.
"""

from __future__ import annotations

import os
import sys
from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000
NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x1000_0000, 0x2000_0000, 0x4000_0000
"""Flags of `unshare` and `setns`, one for each kind of name space."""
NO_SUID, NO_DEVICES, NO_PROGRAMS = 2, 4, 8
"""Flags of `mount`."""
_DETACH = 2
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_PR_SET_SECCOMP, _FILTER = 22, 2
_PR_CAPBSET_DROP = 24
_CAPABILITIES_3 = 0x2008_0522
_EINVAL = 22
_C_CALL, _KEEP_ERRNO = 1, 8


def _function(name: str) -> Any:
    """A function of the C library, as one that raises OSError where that returns -1."""
    import _ctypes

    kind: Any = _ctypes
    integer = type("Integer", (kind._SimpleCData,), {"_type_": "i"})
    call = type("Call", (kind.CFuncPtr,), {"_flags_": _C_CALL | _KEEP_ERRNO, "_restype_": integer})
    function = call(kind.dlsym(kind.dlopen(None, os.RTLD_NOW), name))

    def checked(*arguments: int | bytes | None) -> int:
        result = function(*arguments)
        if result < 0:
            error = kind.get_errno()
            raise OSError(error, f"{name}: {os.strerror(error)}")
        return result

    return checked


_NAMES = ("capset", "mount", "prctl", "setns", "umount2", "unshare")
_known: dict[str, Any] = {}


def load() -> None:
    """Find all functions now, and not when they are needed first."""
    for name in _NAMES:
        _known[name] = _function(name)


def _call(name: str, *arguments: int | bytes | None) -> int:
    if name not in _known:
        _known[name] = _function(name)
    return _known[name](*arguments)


def unshare(flags: int) -> None:
    """New name spaces for this process; of processes, for its next child."""
    _call("unshare", flags)


def enter(descriptor: int, kind: int) -> None:
    """An open name space of this kind; one of processes counts for children only."""
    _call("setns", descriptor, kind)


def mount(kind: str, place: str, flags: int, options: str = "") -> None:
    """A new file system without a device."""
    name = kind.encode()
    _call("mount", name, place.encode(), name, flags, options.encode() or None)


def unmount(place: str) -> None:
    """Out of sight now, gone with its last user."""
    _call("umount2", place.encode(), _DETACH)


def make_readable(readable: bool) -> None:
    """Whether a process of the same user may look into this one, and this one at its own files in /proc.

    Process 1 must be closed: else code with its user id could open /proc/1/fd and forge frames to the host.
    """
    _call("prctl", _PR_SET_DUMPABLE, int(readable), 0, 0, 0)
    if _call("prctl", _PR_GET_DUMPABLE, 0, 0, 0, 0) != readable:
        raise OSError("process 1 stayed readable")


def drop_capabilities() -> None:
    """All of them, for good: no program that is run later gets one back."""
    for number in range(64):
        try:
            _call("prctl", _PR_CAPBSET_DROP, number, 0, 0, 0)
        except OSError as error:
            if error.errno != _EINVAL or not number:
                raise
            break  # past the last one that this kernel knows
    head = _CAPABILITIES_3.to_bytes(4, sys.byteorder) + bytes(4)
    _call("capset", head, bytes(24))


def refuse_calls(program: bytes) -> None:
    """The system call filter, by number. Docker's own goes by name, and an old library lacks new names."""
    instructions = array("B", program)
    address, size = instructions.buffer_info()
    head = (size // 8).to_bytes(8, sys.byteorder) + address.to_bytes(8, sys.byteorder)  # struct sock_fprog
    _call("prctl", _PR_SET_SECCOMP, _FILTER, head, 0, 0)
