"""The Docker back end: the same execution environment, imported as an image, one container a sandbox.

The host listens on a socket in a private folder, the container's process 1 connects, the socket's name goes.
An ended host closes its end, process 1 leaves, and `sweep` of a later host removes the dead container. Must
not know what the frames on the channel mean.
"""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import docker
import docker.errors
import requests.exceptions
from docker import DockerClient
from docker.models.containers import Container

from broker.errors import SandboxLost
from broker.sandbox.base import Limits, Role, Sandbox, StartLimiter, identity_of
from broker.sandbox.cgroup import group_kills, memory_group_of
from broker.sandbox.channel import START_SECONDS, ChannelSandbox
from broker.sandbox.labels import DEADLINE, HOST, MACHINE, RUN, host_label, host_of, lives, machine
from broker.sandbox.mounts import readable_by_others
from broker.sandbox.runtime import Runtime
from broker.sandbox.seccomp import docker_profile
from catalog.digest import short

IMAGE: Final = "rinr-runtime"
_USERS: Final = {Role.CONTROLLER: "65533:65533", Role.EXECUTION: "65534:65534"}
_DOCKER_ERRORS: Final = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)
_FOLDER: Final = re.compile(r"rinr-([0-9]+-[0-9]+)-\w+")


def connect(seconds: float = 60.0) -> DockerClient:
    """A client of the daemon that answers here. Raises SandboxLost."""
    try:
        client = docker.from_env(timeout=int(seconds))
        client.ping()  # pyright: ignore[reportUnknownMemberType]
    except _DOCKER_ERRORS as error:
        raise SandboxLost(f"no Docker daemon answers ({str(error)[:200]})") from error
    return client


class DockerSandbox(ChannelSandbox):
    """One container; `folder` is the private folder of its socket."""

    def __init__(self, container: Container, folder: Path) -> None:
        super().__init__()
        self._container = container
        self._folder = folder
        self._memory_group: Path | None = None
        self._kills = 0

    def note_memory_group(self) -> None:
        """Find the container's memory group while its process 1 lives. Blocking."""
        with contextlib.suppress(*_DOCKER_ERRORS):
            self._container.reload()
            self._memory_group = memory_group_of(self._container.attrs["State"]["Pid"])

    def complaint(self) -> str:
        return ""

    def oom_killed(self) -> bool:
        if self._memory_group is not None:
            self._kills = max(self._kills, group_kills(self._memory_group))
        return self._kills > 0

    async def destroy(self) -> None:
        self.oom_killed()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        try:
            if self._kills == 0:  # the group of a dead container is gone, but then Docker itself knows
                self._container.reload()
                self._kills = int(self._container.attrs["State"]["OOMKilled"])
            self._container.remove(force=True, v=True)
        except docker.errors.NotFound:
            pass
        except _DOCKER_ERRORS as error:
            raise SandboxLost(f"cannot remove a container: {error}") from error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class DockerFactory:
    """Starts container sandboxes; see `base.SandboxFactory`."""

    kind = "docker"
    proves = frozenset({"oom"})

    def __init__(self, runtime: Runtime, cache: Path, limits: Mapping[Role, Limits], run: str = "") -> None:
        self._client = connect()
        self._runtime = runtime
        self._cache = cache
        self._limits = dict(limits)
        self._run = run
        self._profile = json.dumps(docker_profile())
        self._starts = StartLimiter()
        self._folder = Path(tempfile.mkdtemp(prefix=f"rinr-{host_label()}-"))
        self._readable: dict[Path, Path] = {}
        self._image = self._ensure_image()
        self.identity = identity_of(self.kind, runtime.digest, self._profile.encode(), self._limits)

    def _ensure_image(self) -> str:
        """Import the root folder once for each content; the tag names it."""
        tag = short(self._runtime.digest, 16)
        name = f"{IMAGE}:{tag}"
        try:
            if self._client.images.list(name=name):
                return name
            with tempfile.NamedTemporaryFile(dir=self._cache, suffix=".tar") as archive:
                with tarfile.open(archive.name, mode="w") as tar:
                    tar.add(self._runtime.root, arcname=".", filter=_as_root)
                api: Any = self._client.api
                api.import_image_from_file(archive.name, repository=IMAGE, tag=tag)
        except _DOCKER_ERRORS as error:
            raise SandboxLost(f"Docker cannot import the execution environment: {error}") from error
        return name

    async def start(self, role: Role, *, lake: Path | None = None, assets: Path | None = None) -> Sandbox:
        if role is Role.CONTROLLER and (lake or assets):
            raise ValueError("the controller never sees the lake or assets (HOST-02)")
        mounts = {"/lake": lake, "/assets": assets}
        shown = {inside: self._visible(path) for inside, path in mounts.items() if path is not None}
        async with self._starts.slot():
            return await self._spawn(role, shown)

    def _visible(self, folder: Path) -> Path:
        if folder not in self._readable:
            self._readable[folder] = readable_by_others(folder.resolve(), self._cache)
        return self._readable[folder]

    async def _spawn(self, role: Role, shown: Mapping[str, Path]) -> DockerSandbox:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        folder.chmod(0o755)  # its parent stays closed to other users of this machine
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "host"))
            (folder / "host").chmod(0o666)
            listener.listen(1)
            listener.setblocking(False)
            making = asyncio.ensure_future(asyncio.to_thread(self._create, role, shown, folder))
            try:
                sandbox = await asyncio.shield(making)
                accepting = asyncio.get_running_loop().sock_accept(listener)
                connection, _ = await asyncio.wait_for(accepting, START_SECONDS)
                (folder / "host").unlink()
                await sandbox.attach(connection)
            except BaseException as error:
                with contextlib.suppress(SandboxLost):
                    await (await making).close()
                if isinstance(error, TimeoutError):
                    raise SandboxLost("a container started but its supervisor did not call back") from error
                raise
            return sandbox

    def _create(self, role: Role, shown: Mapping[str, Path], folder: Path) -> DockerSandbox:
        """Create and start the container. Blocking."""
        try:
            container = self._client.containers.create(**self._options(role, shown, folder))
        except _DOCKER_ERRORS as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise SandboxLost(f"Docker cannot create a sandbox: {error}") from error
        sandbox = DockerSandbox(container, folder)
        try:
            container.start()
        except _DOCKER_ERRORS as error:
            with contextlib.suppress(*_DOCKER_ERRORS):
                container.remove(force=True, v=True)
            raise SandboxLost(f"Docker cannot start a sandbox: {error}") from error
        sandbox.note_memory_group()
        return sandbox

    def _options(self, role: Role, shown: Mapping[str, Path], folder: Path) -> dict[str, Any]:
        limits = self._limits[role]
        settings = {
            "role": role.value,
            "socket": "/rinr/host",
            # The daemon's own limit counts processes; the kernel's counts per user id, across containers.
            "limits": {**limits.model_dump(), "count_processes": False},
        }
        # Two files an inode-hungry program would need for each 4 KiB that it may store.
        space = f"rw,nosuid,nodev,exec,mode=1777,size={limits.file_bytes},nr_inodes={limits.file_bytes >> 11}"
        volumes = {str(path): {"bind": inside, "mode": "ro"} for inside, path in shown.items()}
        return {
            "image": self._image,
            "command": [*self._runtime.arguments, json.dumps(settings)],
            "environment": self._runtime.environment,
            "working_dir": "/work",
            "hostname": "sandbox",
            "user": _USERS[role],
            "network_mode": "none",
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true", f"seccomp={self._profile}"],
            "pids_limit": limits.processes + 2,
            "mem_limit": limits.memory_bytes,
            "memswap_limit": limits.memory_bytes,
            "ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "tmpfs": {"/work": space, "/tmp": space},
            "shm_size": 16 << 20,
            "volumes": {**volumes, str(folder): {"bind": "/rinr", "mode": "ro"}},
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
        }

    async def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._client.close()


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def sweep_containers() -> int:
    """Remove containers whose host is dead or whose deadline passed, and sockets of dead hosts."""
    for folder in Path(tempfile.gettempdir()).glob("rinr-*"):
        if (name := _FOLDER.fullmatch(folder.name)) and not lives(name[1]):
            shutil.rmtree(folder, ignore_errors=True)
    try:
        client = connect(10.0)
    except SandboxLost:
        return 0
    removed = 0
    try:
        for container in client.containers.list(all=True, filters={"label": HOST}, ignore_removed=True):
            labels: dict[str, str] = container.attrs["Config"]["Labels"]
            late = time.time() > float(labels.get(DEADLINE, "inf"))
            if late or host_of(labels) is False:
                with contextlib.suppress(*_DOCKER_ERRORS):
                    container.remove(force=True, v=True)
                    removed += 1
    except _DOCKER_ERRORS:
        return removed
    finally:
        client.close()
    return removed
