"""How bubblewrap is called: for one sandbox, or for a zygote from which sandboxes are forked.

What both have in common stands once, for a forked sandbox shall be what a started one is. Must not know who
runs the command, nor what goes over the descriptors that it names.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.sandbox.base import USERS, Limits, Role
from broker.sandbox.labels import process_mark
from broker.sandbox.runtime import Runtime

_ZYGOTE_RIGHTS: Final = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN")
"""In its own name spaces: to make its children's, and to raise their loopback."""
_SHARED_MEMORY: Final = 16 << 20
_ZYGOTE_PROC: Final = "/rinr"
"""Where a zygote finds its own processes. It is a mount point in every runtime."""
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS: Final = {
    "core": "/proc/kcore",
    "fd": "/proc/self/fd",
    "ptmx": "pts/ptmx",
    "stderr": "/proc/self/fd/2",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
}


@dataclass(frozen=True)
class Call:
    """One role's sandboxes in one runtime, as commands."""

    prefix: Sequence[str]
    """What comes before bubblewrap."""
    program: str
    runtime: Runtime
    role: Role
    limits: Limits

    def sandbox(self, shown: Mapping[str, str], channel: int, filter_end: int) -> list[str]:
        """One sandbox. `shown`: where folders of the host appear inside."""
        user, size = str(USERS[self.role]), str(self.limits.file_bytes)
        return [
            *self._begin(),
            *("--disable-userns", "--die-with-parent", "--as-pid-1"),
            *("--uid", user, "--gid", user, "--seccomp", str(filter_end)),
            *_shown(shown),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--size", str(_SHARED_MEMORY), "--perms", "1777", "--tmpfs", "/dev/shm"),
            *("--remount-ro", "/dev"),
            *("--size", size, "--perms", "1777", "--tmpfs", "/tmp"),
            *("--size", size, "--perms", "1777", "--tmpfs", "/work", "--chdir", "/work"),
            *self._environment(),
            "--",
            *self.runtime.arguments,
            json.dumps({**self._settings(), "channel": channel}),
        ]

    def zygote(self, shown: Mapping[str, str], requests: int, refused: bytes) -> list[str]:
        """A zygote for sandboxes that all see the same. `refused`: the system call filter of its children."""
        user = str(USERS[self.role])
        settings = {
            **self._settings(),
            "user": USERS[self.role],
            "requests": requests,
            "filter": refused.hex(),
            "proc": _ZYGOTE_PROC,
            "shared_memory": _SHARED_MEMORY,
        }
        return [
            *self._begin(),
            *(part for right in _ZYGOTE_RIGHTS for part in ("--cap-add", right)),
            *("--uid", user, "--gid", user),
            *_shown(shown),
            *("--proc", _ZYGOTE_PROC, "--chdir", "/work"),
            *_devices(),
            *self._environment(),
            "--",
            *self.runtime.zygote_arguments,
            json.dumps(settings),
        ]

    def _begin(self) -> list[str]:
        return [
            *self.prefix,
            self.program,
            *("--unshare-all", "--unshare-user", "--new-session", "--hostname", "sandbox", "--clearenv"),
        ]

    def _environment(self) -> list[str]:
        return [part for item in self.runtime.environment.items() for part in ("--setenv", *item)]

    def _settings(self) -> dict[str, Any]:
        return {
            "role": self.role.value,
            "host": process_mark(),
            "limits": {**self.limits.model_dump(), "count_processes": True},
        }


def _shown(shown: Mapping[str, str]) -> list[str]:
    return [part for inside, path in shown.items() for part in ("--ro-bind", path, inside)]


def _devices() -> list[str]:
    """What `--dev` shows, without terminals and shared memory, which each child gets for itself.

    `--dev` would have the zygote's user be root in its name space, and the kernel would give the files of all
    processes forked there to that user: tool code could make process 1 the one to kill when memory runs out.
    """
    return [
        *("--perms", "0755", "--tmpfs", "/dev", "--dir", "/dev/pts", "--dir", "/dev/shm"),
        *(part for name in _DEVICES for part in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *(part for name, to in _DEVICE_LINKS.items() for part in ("--symlink", to, f"/dev/{name}")),
        *("--remount-ro", "/dev"),
    ]
