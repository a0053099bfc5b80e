"""The Docker back end: the same execution environment, imported as an image, one container a sandbox.

The host listens on a socket in a private folder, the container's process 1 connects, the socket's name goes.
A daemon elsewhere cannot mount that socket: there the container's attached streams are the channel. An ended
host closes its end, process 1 leaves, and the watchdog removes the dead container. Must not know what the
frames on the channel mean.
"""

import asyncio
import contextlib
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import docker.errors
from docker.models.containers import Container
from docker.types import Mount, Ulimit

from broker.errors import SandboxLost
from broker.sandbox.attach import attach
from broker.sandbox.base import USERS, Limits, Role, Sandbox, StartLimiter, identity_of
from broker.sandbox.cgroup import group_kills, memory_group_of
from broker.sandbox.channel import START_SECONDS, ChannelSandbox
from broker.sandbox.containers import DOCKER_ERRORS, connect, is_remote, limited_by_daemon
from broker.sandbox.image import ensure_image, expect_image
from broker.sandbox.labels import DEADLINE, HOST, MACHINE, RUN, host_label, machine, private_folder
from broker.sandbox.mounts import readable_by_others
from broker.sandbox.runtime import Runtime
from broker.sandbox.seccomp import bpf_filter, docker_profile


class DockerSandbox(ChannelSandbox):
    """One container; `folder` is the private folder of its socket, if it has one."""

    def __init__(
        self, container: Container, folder: Path | None, remote: bool, unremoved: list["DockerSandbox"]
    ) -> None:
        super().__init__()
        self._unremoved = unremoved
        self._container = container
        self._folder = folder
        self._remote = remote
        self._memory_group: Path | None = None
        self._kills = 0

    def note_memory_group(self) -> None:
        """Find the container's memory group while its process 1 lives. Blocking."""
        if self._remote:
            return
        with contextlib.suppress(*DOCKER_ERRORS):
            self._container.reload()
            identity = str(self._container.id)
            self._memory_group = memory_group_of(self._container.attrs["State"]["Pid"], identity)

    def complaint(self) -> str:
        return ""

    def oom_killed(self) -> bool:
        if self._memory_group is not None:
            self._kills = max(self._kills, group_kills(self._memory_group))
        return self._kills > 0

    async def destroy(self) -> None:
        self.oom_killed()
        await asyncio.to_thread(self.remove)

    def remove(self) -> None:
        """Blocking. Does not raise: a finished episode must not be lost because its container stays.

        Its processes ended with the channel. The factory tries again, then the watchdog does.
        """
        try:
            if self._kills == 0:  # the group of a dead container is gone, but then Docker itself knows
                self._container.reload()
                self._kills = int(self._container.attrs["State"]["OOMKilled"])
            self._container.remove(force=True, v=True)
        except docker.errors.NotFound:
            pass
        except DOCKER_ERRORS:
            self._unremoved.append(self)
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)


class DockerFactory:
    """Starts container sandboxes; see `base.SandboxFactory`.

    `image` names one that `deploy/build-image` made; without it the environment is imported where missing.
    """

    kind = "docker"

    def __init__(
        self,
        runtime: Runtime,
        cache: Path,
        limits: Mapping[Role, Limits],
        run: str = "",
        image: str | None = None,
    ) -> None:
        self._client = connect()
        self._remote = is_remote(self._client)
        self._runtime = runtime
        self._cache = cache
        self._limits = dict(limits)
        self._run = run
        self._profile = json.dumps(docker_profile())
        self._filter = bpf_filter()
        self._starts = StartLimiter()
        self._readable: dict[Path, Path] = {}
        self._unremoved: list[DockerSandbox] = []
        self.proves = frozenset(() if self._remote else {"oom"}) | limited_by_daemon(self._client)
        self.identity = identity_of(
            self.kind, runtime.identity, self._profile.encode() + self._filter, self._limits
        )
        ready = expect_image(self._client, image, runtime) if image else None
        self._image = ready or ensure_image(self._client, runtime, cache)
        with _room_for_sockets():
            self._folder = private_folder()

    async def start(self, role: Role, *, lake: Path | None = None, assets: Path | None = None) -> Sandbox:
        if role is Role.CONTROLLER and (lake or assets):
            raise ValueError("the controller never sees the lake or assets (HOST-02)")
        mounts = {"/lake": lake, "/assets": assets}
        shown = {inside: self._visible(path) for inside, path in mounts.items() if path is not None}
        async with self._starts.slot():
            return await (self._spawn_attached(role, shown) if self._remote else self._spawn(role, shown))

    def _visible(self, folder: Path) -> Path:
        if folder not in self._readable:
            self._readable[folder] = readable_by_others(folder.resolve(), self._cache)
        return self._readable[folder]

    async def _spawn(self, role: Role, shown: Mapping[str, Path]) -> DockerSandbox:
        with socket.socket(socket.AF_UNIX) as listener:
            with _room_for_sockets():
                folder = Path(tempfile.mkdtemp(dir=self._folder))
                folder.chmod(0o755)  # its parent stays closed to other users of this machine
                listener.bind(str(folder / "host"))
                (folder / "host").chmod(0o666)
            listener.listen(1)
            listener.setblocking(False)
            shown = {**shown, "/rinr": folder}
            making = asyncio.ensure_future(
                asyncio.to_thread(self._create, role, shown, {"socket": "/rinr/host"})
            )

            async def connect() -> tuple[DockerSandbox, socket.socket]:
                sandbox, _ = await asyncio.shield(making)
                accepting = asyncio.get_running_loop().sock_accept(listener)
                connection, _ = await asyncio.wait_for(accepting, START_SECONDS)
                (folder / "host").unlink()
                return sandbox, connection

            try:
                return await self._join(making, connect)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    async def _spawn_attached(self, role: Role, shown: Mapping[str, Path]) -> DockerSandbox:
        making = asyncio.ensure_future(asyncio.to_thread(self._create, role, shown, {"streams": True}))

        async def connect() -> tuple[DockerSandbox, socket.socket]:
            sandbox, connection = await asyncio.shield(making)
            assert connection is not None
            return sandbox, connection

        return await self._join(making, connect)

    async def _join(
        self,
        making: "asyncio.Future[tuple[DockerSandbox, socket.socket | None]]",
        connect: Callable[[], Awaitable[tuple[DockerSandbox, socket.socket]]],
    ) -> DockerSandbox:
        """Connect to the container that is being made; whatever happens meanwhile, none is left behind."""
        try:
            sandbox, connection = await connect()
            await sandbox.attach(connection)
        except BaseException as error:
            with contextlib.suppress(SandboxLost):
                made, unused = await making
                if unused is not None:
                    unused.close()
                await made.close()
            if isinstance(error, TimeoutError):
                raise SandboxLost("a container started but its supervisor did not call back") from error
            raise
        return sandbox

    def _create(
        self, role: Role, shown: Mapping[str, Path], channel: Mapping[str, Any]
    ) -> tuple[DockerSandbox, socket.socket | None]:
        """Create and start the container; with its streams where they are the channel. Blocking."""
        try:
            try:
                container = self._client.containers.create(**self._options(role, shown, channel))
            except docker.errors.ImageNotFound:  # somebody tidied up meanwhile
                self._image = ensure_image(self._client, self._runtime, self._cache)
                container = self._client.containers.create(**self._options(role, shown, channel))
        except DOCKER_ERRORS as error:
            raise SandboxLost(f"Docker cannot create a sandbox: {error}") from error
        sandbox = DockerSandbox(container, shown.get("/rinr"), self._remote, self._unremoved)
        try:
            stream = attach(self._client, str(container.id)) if "streams" in channel else None
            container.start()
        except DOCKER_ERRORS as error:
            sandbox.remove()
            raise SandboxLost(f"Docker cannot start a sandbox: {error}") from error
        sandbox.note_memory_group()
        self._remove_again()
        return sandbox, stream

    def _remove_again(self) -> None:
        """The daemon answers, so what could not be removed before may go now. Blocking."""
        waiting = self._unremoved.copy()
        del self._unremoved[: len(waiting)]
        for sandbox in waiting:
            sandbox.remove()

    def _options(self, role: Role, shown: Mapping[str, Path], channel: Mapping[str, Any]) -> dict[str, Any]:
        limits = self._limits[role]
        settings = {
            "role": role.value,
            **channel,
            "filter": self._filter.hex(),
            # The daemon's own limit counts processes; the kernel's counts per user id, across containers.
            "limits": {**limits.model_dump(), "count_processes": False},
        }
        # Two files an inode-hungry program would need for each 4 KiB that it may store.
        space = f"rw,nosuid,nodev,exec,mode=1777,size={limits.file_bytes},nr_inodes={limits.file_bytes >> 11}"
        # Unlike a volume, a missing source is an error here and not an empty folder.
        mounts = [Mount(inside, str(path), type="bind", read_only=True) for inside, path in shown.items()]
        return {
            "image": self._image,
            "command": [*self._runtime.arguments, json.dumps(settings)],
            "environment": self._runtime.environment,
            "working_dir": "/work",
            "hostname": "sandbox",
            "user": f"{USERS[role]}:{USERS[role]}",
            "network_mode": "none",
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true", f"seccomp={self._profile}"],
            "pids_limit": limits.processes + 2,
            "mem_limit": limits.memory_bytes,
            "memswap_limit": limits.memory_bytes,
            "nano_cpus": int(limits.cpus * 1e9),
            "ulimits": [
                # One byte: with 0 the kernel would still hand a dump to the host's handler.
                Ulimit(name="core", soft=1, hard=1),
                Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
            ],
            "tmpfs": {"/work": space, "/tmp": space},
            "shm_size": 16 << 20,
            "mounts": mounts,
            "ipc_mode": "private",
            "log_config": {"Type": "none"},
            "labels": {
                HOST: host_label(),
                MACHINE: machine(),
                RUN: self._run,
                DEADLINE: str(int(time.time() + limits.wall_seconds)),
            },
            # An init of Docker's would run as our user and be readable: forged frames.
            "init": False,
            # The streams' end is the host's end: process 1 then reads the end of its input.
            **({"stdin_open": True} if "streams" in channel else {}),
        }

    async def close(self) -> None:
        await asyncio.to_thread(self._remove_again)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._client.close()


@contextlib.contextmanager
def _room_for_sockets() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise SandboxLost(
            f"cannot make a socket in {tempfile.gettempdir()}: {error}; make room or set TMPDIR"
        ) from error
