"""What only Docker has: limits and labels of a container, a daemon elsewhere, the watchdog's containers."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from broker.errors import SandboxLost
from broker.sandbox.base import Role, SandboxFactory
from broker.sandbox.cgroup import group_kills, memory_group_of
from broker.sandbox.docker import DockerFactory
from broker.sandbox.factory import open_factory, sweep
from broker.sandbox.labels import DEADLINE, HOST, MACHINE, RUN, host_label, machine
from tests.fixtures.docker_daemon import Daemon
from tests.fixtures.leftovers import containers_of, settles
from tests.fixtures.sandbox_probe import (
    CACHE,
    SMALL,
    converse,
    execute,
    execution,
    open_or_skip,
    sandbox_runtime,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def factory() -> AsyncIterator[SandboxFactory]:
    factory = open_or_skip("docker")
    yield factory
    await factory.close()


def own_containers() -> list[dict[str, Any]]:
    """Everything that the daemon says about this process's containers."""
    client = docker.from_env()
    found = client.containers.list(all=True, filters={"label": f"{HOST}={host_label()}"})
    return [container.attrs for container in found]


async def test_a_container_has_every_limit_and_label(factory: SandboxFactory) -> None:
    async with execution(factory):
        (facts,) = own_containers()
    settings, configuration = facts["HostConfig"], facts["Config"]
    limits = SMALL[Role.EXECUTION]
    assert (settings["Memory"], settings["MemorySwap"]) == (limits.memory_bytes, limits.memory_bytes)
    assert settings["PidsLimit"] == limits.processes + 2
    assert settings["NanoCpus"] == 1_000_000_000
    ulimits = {one["Name"]: (one["Soft"], one["Hard"]) for one in settings["Ulimits"]}
    assert ulimits == {"core": (1, 1), "nofile": (limits.open_files, limits.open_files)}
    assert settings["NetworkMode"] == "none"
    assert settings["ReadonlyRootfs"] is True
    assert settings["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in settings["SecurityOpt"]
    assert settings["IpcMode"] == "private"
    assert settings["LogConfig"]["Type"] == "none"
    assert "nr_inodes=" in settings["Tmpfs"]["/work"]
    assert not settings["Init"], "it would run as the sandbox's user and could be read"
    assert not settings["AutoRemove"], "whether memory ran out must stay readable"
    labels = configuration["Labels"]
    assert labels[HOST] == host_label()
    assert labels[MACHINE] == machine()
    assert RUN in labels
    assert 0 < float(labels[DEADLINE]) - time.time() <= limits.wall_seconds
    assert own_containers() == []


async def test_a_lake_that_is_not_there_is_an_error_and_no_empty_folder(tmp_path: Path) -> None:
    factory = open_or_skip("docker")
    missing = tmp_path / "missing"
    with pytest.raises(SandboxLost, match="missing"):
        await factory.start(Role.EXECUTION, lake=missing)
    assert not missing.exists()
    assert own_containers() == []
    await factory.close()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.stop()


NEVER_STARTED = """
import sys, time
sys.path.insert(0, {root!r})
from broker.sandbox.cgroup import group_kills, memory_group_of
from broker.sandbox.docker import DockerFactory
from broker.sandbox.watchdog import keep_watch
from tests.fixtures.sandbox_probe import *
factory = DockerFactory(sandbox_runtime(), CACHE, SMALL)
for _ in range(2):
    factory._client.containers.create(**factory._options(Role.EXECUTION, {{}}, {{"socket": "/rinr/host"}}))
if {watch}:
    keep_watch(containers=True)
    time.sleep(3)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("watch", [False, True])
async def test_a_container_that_never_started_goes_by_the_watchdog_or_by_the_next_host(
    watch: bool, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a daemon of its own, and without a watchdog first: whoever else is around would remove them too."""
    monkeypatch.setenv("DOCKER_HOST", daemon.unix)
    code = NEVER_STARTED.format(root=str(ROOT), watch=watch)
    pipe = asyncio.subprocess.PIPE
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=pipe, cwd=ROOT)
    assert host.stdout is not None
    assert await host.stdout.readline() == b"ready\n"
    assert len(containers_of(host.pid)) == 2
    host.send_signal(signal.SIGKILL)
    await host.wait()
    if not watch:
        assert len(containers_of(host.pid)) == 2
        assert sweep() >= 2
    assert await settles(lambda: containers_of(host.pid) == [], within=2)


@pytest.mark.slow
async def test_a_daemon_that_can_mount_no_socket_is_reached_over_attached_streams(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon.tcp)
    (tmp_path / "table").write_text("found")
    factory = open_factory("docker", sandbox_runtime(), CACHE, SMALL)
    async with execution(factory, lake=tmp_path) as sandbox:
        (facts,) = own_containers()
        assert [mount["Destination"] for mount in facts["Mounts"]] == ["/lake"], "no socket is mounted"
        await execute(sandbox, "x = 'y' * 300_000")
        seen = await execute(sandbox, "import sys; print(open('/lake/table').read(), len(x)); print(x)")
        assert seen["stdout"].startswith("found 300000\nyyy")
        assert seen["output_truncated"]
        forge = (
            "import os\nfor fd in range(3):\n    try: os.write(fd, b'\\xff' * 9)\n    except OSError: pass"
        )
        assert (await execute(sandbox, forge))["error"] == "", "its own streams are not the channel's"
        assert (await execute(sandbox, "os._exit(1)"))["worker_lost"]
        assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"
        assert await sandbox.responds()
    (_, submitted, end) = await converse(factory, "def run(task, api):\n    api.submit(api.generate([]))")
    assert (submitted["text"], end) == ("text", {"op": "end"})
    assert own_containers() == []
    await factory.close()


ATTACHED_HOST = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.fixtures.sandbox_probe import *
async def main():
    factory = open_factory("docker", sandbox_runtime(), CACHE, SMALL)
    sandbox = await factory.start(Role.EXECUTION)
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_killed_host_leaves_nothing_on_a_remote_daemon(daemon: Daemon) -> None:
    environment = {**os.environ, "DOCKER_HOST": daemon.tcp}
    host = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ATTACHED_HOST.format(root=str(ROOT)),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=environment,
    )
    assert host.stdout is not None
    assert await host.stdout.readline() == b"ready\n"
    await asyncio.sleep(2)  # the watchdog, too, has started by now
    host.send_signal(signal.SIGKILL)
    await host.wait()
    client = docker.DockerClient(base_url=daemon.tcp)
    assert await settles(lambda: client.containers.list(all=True, ignore_removed=True) == [], within=2)


async def test_one_watchdog_serves_a_process_and_ends_with_it() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from broker.sandbox import watchdog
for _ in range(3):
    watchdog.keep_watch(containers=False)
print(*(process.pid for process in watchdog._watched.values()))
"""
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    printed, _ = await host.communicate()
    (pid,) = map(int, printed.split())
    assert await settles(lambda: not Path(f"/proc/{pid}").exists(), within=5)


def test_an_image_that_holds_something_else_is_refused() -> None:
    open_or_skip("docker")
    with pytest.raises(SandboxLost, match="deploy/build-image"):
        DockerFactory(sandbox_runtime(), CACHE, SMALL, image="rinr-no-such-image:1")


async def test_the_filter_that_process_1_sets_holds_where_dockers_own_does_not(
    factory: SandboxFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old library does not know new calls by name; the numbers reach the kernel all the same."""
    empty = json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "architectures": [], "syscalls": []})
    monkeypatch.setattr(factory, "_profile", empty)
    async with execution(factory) as sandbox:
        code = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
        code += "print(c.syscall(425, 1, 0), ctypes.get_errno())"
        assert (await execute(sandbox, code))["stdout"] == "-1 1\n"


@pytest.mark.spec("HOST-07")
@pytest.mark.parametrize(
    ("name", "text", "kills"),
    [
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", 2),
        ("memory.events", "low 0\nhigh 0\nmax 31\noom 5\noom_kill 3\noom_group_kill 1\n", 3),
        ("memory.events", "low 0\nhigh 0\nmax 31\noom 5\noom_kill 0\n", 0),
    ],
    ids=["version 1", "version 2", "version 2, at its limit only"],
)
def test_the_kernels_counter_is_read_in_both_versions(
    tmp_path: Path, name: str, text: str, kills: int
) -> None:
    (tmp_path / name).write_text(text)
    assert group_kills(tmp_path) == kills
    assert group_kills(tmp_path / "gone") == 0


async def test_a_process_of_another_name_space_is_never_taken_for_the_containers(
    factory: SandboxFactory,
) -> None:
    """A remote daemon's process ids mean something else here: the group's path must name the container."""
    async with execution(factory) as sandbox:
        (facts,) = own_containers()
        pid = facts["State"]["Pid"]
        assert (found := memory_group_of(pid, facts["Id"])) is not None
        assert facts["Id"] in str(found)
        assert memory_group_of(pid, "0" * 64) is None
        assert memory_group_of(os.getpid(), facts["Id"]) is None
        assert not sandbox.oom_killed()
