"""The bubblewrap back end: Linux namespaces without a daemon. Works as root and as an ordinary user.

A sandbox is one `bwrap` process and its process 1; both die with this process. Root first becomes the user of
the sandbox's role; an ordinary user has but one, so there the role's user is a name inside. Must not know
what the frames on the channel mean.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.errors import SandboxLost
from broker.sandbox.base import USERS, Limits, Role, Sandbox, StartLimiter, identity_of
from broker.sandbox.cgroup import SandboxGroup, make_group
from broker.sandbox.channel import ChannelSandbox
from broker.sandbox.labels import process_mark
from broker.sandbox.mounts import MountSpace, readable_by_others
from broker.sandbox.runtime import Runtime
from broker.sandbox.seccomp import bpf_filter

_JOIN_GROUP: Final = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'
_SHARED_MEMORY: Final = 16 << 20


class BubblewrapSandbox(ChannelSandbox):
    """One running sandbox; `complaints` is a memory file with what bubblewrap and the supervisor wrote."""

    def __init__(self, process: subprocess.Popen[bytes], group: SandboxGroup | None, complaints: int) -> None:
        super().__init__()
        self._process = process
        self._group = group
        self._complaints = complaints

    def complaint(self) -> str:
        if self._complaints < 0:
            return ""
        start = max(0, os.fstat(self._complaints).st_size - 8_192)
        lines = os.pread(self._complaints, 8_192, start).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def destroy(self) -> None:
        await _kill(self._process)
        if self._group is not None:
            await self._group.remove()
        os.close(self._complaints)
        self._complaints = -1

    def oom_killed(self) -> bool:
        return self._group is not None and self._group.kills() > 0


class BubblewrapFactory:
    """Starts bubblewrap sandboxes; see `base.SandboxFactory`."""

    kind = "bubblewrap"

    def __init__(self, runtime: Runtime, cache: Path, limits: Mapping[Role, Limits]) -> None:
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxLost("bubblewrap is missing: apt-get install bubblewrap")
        release = os.uname().release
        if not _processes_are_counted_per_sandbox(release):
            raise SandboxLost(f"bubblewrap needs Linux 5.14 to limit processes, not {release}: start docker")
        self._program = program
        self._runtime = runtime
        self._cache = cache
        self._limits = dict(limits)
        self._filter = bpf_filter()
        self._space = MountSpace() if os.geteuid() == 0 else None
        self._starts = StartLimiter()
        self._readable: dict[Path, Path] = {}
        group = make_group(1 << 30, 1.0) if self._space else None
        self.proves = group.proves if group else frozenset[str]()
        if group is not None:
            group.discard()
        self.identity = identity_of(self.kind, runtime.identity, self._filter, self._limits)

    async def start(self, role: Role, *, lake: Path | None = None, assets: Path | None = None) -> Sandbox:
        if role is Role.CONTROLLER and (lake or assets):
            raise ValueError("the controller never sees the lake or assets (HOST-02)")
        async with self._starts.slot():
            shown = {"/": self._visible(self._runtime.root)}
            if lake is not None:
                shown["/lake"] = self._visible(lake)
            if assets is not None:
                shown["/assets"] = self._visible(assets)
            try:
                return await self._spawn_whole(role, shown)
            finally:
                if assets is not None and self._space is not None:
                    self._space.hide(self._readable[assets])

    def _visible(self, folder: Path) -> str:
        """The path under which bubblewrap, as the user it runs as, can read a folder."""
        if self._space is None:
            return str(folder.resolve())
        if folder not in self._readable:
            self._readable[folder] = readable_by_others(folder.resolve(), self._cache)
        return self._space.show(self._readable[folder])

    async def _spawn_whole(self, role: Role, shown: Mapping[str, str]) -> BubblewrapSandbox:
        """Spawn, and when cancelled meanwhile, close what was spawned.

        Not before it is ready: a `bwrap` that is killed in the middle of its set-up leaves its child waiting
        for ever. (Should this process be killed just then, `sweep` finds the child.)
        """
        spawning = asyncio.ensure_future(self._spawn(role, shown))

        async def discard() -> None:
            with contextlib.suppress(SandboxLost):
                await (await spawning).close()

        try:
            return await asyncio.shield(spawning)
        except asyncio.CancelledError:
            await asyncio.shield(discard())
            raise

    async def _spawn(self, role: Role, shown: Mapping[str, str]) -> BubblewrapSandbox:
        limits = self._limits[role]
        group = make_group(limits.memory_bytes, limits.cpus) if self.proves else None
        host_end, inner_end = socket.socketpair()
        filter_end, filter_source = os.pipe()
        os.write(filter_source, self._filter)
        os.close(filter_source)
        complaints = os.memfd_create("complaints", os.MFD_CLOEXEC)
        command = self._command(role, limits, shown, inner_end.fileno(), filter_end)
        if group is not None:
            command = ["sh", "-c", _JOIN_GROUP, "sh", *map(str, group.members), "--", *command]
        try:
            # Not asyncio's own: that one costs more, and cancelled at the wrong moment it waits for ever.
            process = subprocess.Popen(  # noqa: ASYNC220 - both only block until the command runs
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                pass_fds=(inner_end.fileno(), filter_end),
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            )
        except OSError as error:
            host_end.close()
            os.close(complaints)
            if group is not None:
                group.discard()
            raise SandboxLost(f"cannot start a sandbox: {error}") from error
        finally:
            inner_end.close()
            os.close(filter_end)
        sandbox = BubblewrapSandbox(process, group, complaints)
        try:
            await sandbox.attach(host_end)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _command(
        self, role: Role, limits: Limits, shown: Mapping[str, str], channel: int, filter_end: int
    ) -> list[str]:
        settings = {
            "role": role.value,
            "host": process_mark(),
            "channel": channel,
            "limits": {**limits.model_dump(), "count_processes": True},
        }
        size = str(limits.file_bytes)
        return [
            *(self._space.enter_as(USERS[role]) if self._space else ()),
            self._program,
            *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
            *("--as-pid-1", "--new-session", "--hostname", "sandbox", "--clearenv"),
            *("--uid", str(USERS[role]), "--gid", str(USERS[role]), "--seccomp", str(filter_end)),
            *(part for inside, path in shown.items() for part in ("--ro-bind", path, inside)),
            *("--proc", "/proc", "--dev", "/dev"),
            *(
                "--size",
                str(_SHARED_MEMORY),
                "--perms",
                "1777",
                "--tmpfs",
                "/dev/shm",
                "--remount-ro",
                "/dev",
            ),
            *("--size", size, "--perms", "1777", "--tmpfs", "/tmp"),
            *("--size", size, "--perms", "1777", "--tmpfs", "/work", "--chdir", "/work"),
            *(part for item in self._runtime.environment.items() for part in ("--setenv", *item)),
            "--",
            *self._runtime.arguments,
            json.dumps(settings),
        ]

    async def close(self) -> None:
        if self._space is not None:
            self._space.close()


async def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child of ours and return when it is gone."""
    process.kill()
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    handle = os.pidfd_open(process.pid)
    try:
        loop.add_reader(handle, lambda: None if ended.done() else ended.set_result(None))
        await ended
    finally:
        loop.remove_reader(handle)
        os.close(handle)
        process.poll()


def _processes_are_counted_per_sandbox(release: str) -> bool:
    """Linux 5.14 counts processes per user namespace; before, all sandboxes would share one count."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 14)
