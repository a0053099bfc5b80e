"""The bubblewrap back end: Linux namespaces without a daemon. Works as root and as an ordinary user.

A sandbox is forked from a zygote that bubblewrap has started (`zygote`, `nursery`), or, with a task's own
files and where zygotes cannot work, is one `bwrap` process of its own and its process 1. Root first becomes
the user of the sandbox's role; an ordinary user has but one, so there the role's user is a name inside. Must
not know what the frames on the channel mean.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from broker.errors import SandboxLost
from broker.sandbox.base import USERS, Limits, Role, Sandbox, StartLimiter, identity_of
from broker.sandbox.bubblewrap_command import Call
from broker.sandbox.cgroup import SandboxGroup, make_group
from broker.sandbox.channel import ChannelSandbox
from broker.sandbox.mounts import MountSpace, readable_by_others
from broker.sandbox.nursery import BIRTH_SECONDS, Kind, Nursery, Zygote, last_line
from broker.sandbox.runtime import Runtime
from broker.sandbox.seccomp import bpf_filter

_JOIN_GROUP: Final = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'


class BubblewrapSandbox(ChannelSandbox):
    """One running sandbox; `complaints` is a memory file with what was written while it was started."""

    def __init__(
        self,
        handle: int,
        group: SandboxGroup | None,
        complaints: int,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """`handle`: of the process with which all others die. `process`: the same, if it is our child."""
        super().__init__()
        self._handle = handle
        self._process = process
        self._group = group
        self._complaints = complaints

    def complaint(self) -> str:
        return last_line(self._complaints)

    async def destroy(self) -> None:
        await _kill(self._handle)
        if self._process is not None:
            self._process.poll()
        if self._group is not None:
            await self._group.remove()
        os.close(self._complaints)
        self._complaints = -1

    def oom_killed(self) -> bool:
        return self._group is not None and self._group.kills() > 0


class _Parts:
    """What the host holds of a sandbox that is not there yet."""

    def __init__(self, limits: Limits, grouped: bool) -> None:
        self.group = make_group(limits.memory_bytes, limits.cpus) if grouped else None
        self.host_end, self.inner_end = socket.socketpair()
        self.host_end.setblocking(False)
        self.complaints = os.memfd_create("complaints", os.MFD_CLOEXEC)

    def give_up(self, error: OSError | SandboxLost, other_complaint: str = "") -> SandboxLost:
        """Close everything; the error to raise, with the best reason that is known."""
        complaint = last_line(self.complaints) or other_complaint or error
        self.host_end.close()
        os.close(self.complaints)
        if self.group is not None:
            self.group.discard()
        return SandboxLost(f"cannot start a sandbox: {complaint}")


class BubblewrapFactory:
    """Starts bubblewrap sandboxes; see `base.SandboxFactory`."""

    kind = "bubblewrap"

    def __init__(
        self, runtime: Runtime, cache: Path, limits: Mapping[Role, Limits], *, zygotes: bool = True
    ) -> None:
        """`zygotes=False` starts each sandbox by itself, as is done where zygotes cannot work."""
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
        self._starts = StartLimiter(per_core=2)  # half of a fork's time is waiting for the kernel
        self._readable: dict[Path, Path] = {}
        self._environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
        self.nursery = Nursery(
            self._zygote_command, self._environment, fault="" if zygotes else "not wanted here"
        )
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
            if assets is None:
                return await self._whole(self._forked(Kind(role, tuple(shown.items()))))
            shown["/assets"] = self._visible(assets)
            try:
                return await self._whole(self._spawned(role, shown))
            finally:
                if self._space is not None:
                    self._space.hide(self._readable[assets])

    def _visible(self, folder: Path) -> str:
        """The path under which bubblewrap, as the user it runs as, can read a folder."""
        if self._space is None:
            return str(folder.resolve())
        if folder not in self._readable:
            self._readable[folder] = readable_by_others(folder.resolve(), self._cache)
        return self._space.show(self._readable[folder])

    @staticmethod
    async def _whole(start: Coroutine[Any, Any, BubblewrapSandbox]) -> BubblewrapSandbox:
        """Start, and when cancelled meanwhile, close what was started.

        Not before it is ready: a `bwrap` that is killed in the middle of its set-up leaves its child waiting
        for ever. (Should this process be killed just then, `sweep` finds the child.)
        """
        starting = asyncio.ensure_future(start)

        async def discard() -> None:
            with contextlib.suppress(SandboxLost):
                await (await starting).close()

        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.shield(discard())
            raise

    async def _forked(self, kind: Kind) -> BubblewrapSandbox:
        """A child of this kind's zygote; one of its own where that cannot be."""
        while (zygote := self.nursery.find(kind)) is not None:
            try:
                sandbox = await self._child(kind.role, zygote)
            except SandboxLost as error:
                if not self.nursery.failed(kind, zygote, error):
                    raise
            else:
                zygote.bore = True
                return sandbox
        return await self._spawned(kind.role, dict(kind.shown))

    async def _child(self, role: Role, zygote: Zygote) -> BubblewrapSandbox:
        parts = _Parts(self._limits[role], bool(self.proves))
        try:
            _ask(zygote, parts)
            handle = await _introduction(parts.host_end)
        except TimeoutError as error:
            zygote.kill()
            raise parts.give_up(SandboxLost(f"no child of a zygote within {BIRTH_SECONDS:g} s")) from error
        except (OSError, SandboxLost) as error:
            raise parts.give_up(error, zygote.complaint()) from error
        sandbox = BubblewrapSandbox(handle, parts.group, parts.complaints)
        return await _attached(sandbox, parts.host_end)

    async def _spawned(self, role: Role, shown: Mapping[str, str]) -> BubblewrapSandbox:
        parts = _Parts(self._limits[role], bool(self.proves))
        filter_end, filter_source = os.pipe()
        os.write(filter_source, self._filter)
        os.close(filter_source)
        passed = (parts.inner_end.fileno(), filter_end)
        command = self._call(role).sandbox(shown, *passed)
        if parts.group is not None:
            command = ["sh", "-c", _JOIN_GROUP, "sh", *map(str, parts.group.members), "--", *command]
        try:
            # Not asyncio's own: that one costs more, and cancelled at the wrong moment it waits for ever.
            process = subprocess.Popen(  # noqa: ASYNC220 - both only block until the command runs
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=parts.complaints,
                pass_fds=passed,
                env=self._environment,
            )
        except OSError as error:
            raise parts.give_up(error) from error
        finally:
            parts.inner_end.close()
            os.close(filter_end)
        sandbox = BubblewrapSandbox(os.pidfd_open(process.pid), parts.group, parts.complaints, process)
        return await _attached(sandbox, parts.host_end)

    def _call(self, role: Role) -> Call:
        prefix = self._space.enter_as(USERS[role]) if self._space else ()
        return Call(prefix, self._program, self._runtime, role, self._limits[role])

    def _zygote_command(self, kind: Kind, requests: int) -> list[str]:
        return self._call(kind.role).zygote(dict(kind.shown), requests, self._filter)

    async def close(self) -> None:
        await self.nursery.close()
        if self._space is not None:
            self._space.close()


def _ask(zygote: Zygote, parts: _Parts) -> None:
    """For a child that gets the inner end of the channel and joins the groups."""
    members = parts.group.open_members() if parts.group else []
    try:
        zygote.ask((parts.inner_end.fileno(), parts.complaints, *members))
    finally:
        parts.inner_end.close()
        for member in members:
            os.close(member)


async def _introduction(host_end: socket.socket) -> int:
    """The handle that a child sends of itself before anything else. TimeoutError, SandboxLost, OSError."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    loop.add_reader(host_end, lambda: None if came.done() else came.set_result(None))
    try:
        async with asyncio.timeout(BIRTH_SECONDS):
            await came
    finally:
        loop.remove_reader(host_end)
    _, handles, _, _ = socket.recv_fds(host_end, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not handles:
        raise SandboxLost("the zygote bore no child")
    return handles[0]


async def _attached(sandbox: BubblewrapSandbox, host_end: socket.socket) -> BubblewrapSandbox:
    """The same once it is ready; ended if it never is."""
    try:
        await sandbox.attach(host_end)
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def _kill(handle: int) -> None:
    """Kill a process and return when it is gone."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        loop.add_reader(handle, lambda: None if ended.done() else ended.set_result(None))
        await ended
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _processes_are_counted_per_sandbox(release: str) -> bool:
    """Linux 5.14 counts processes per user namespace; before, all sandboxes would share one count."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 14)
