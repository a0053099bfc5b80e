"""Start and end: what is left when a sandbox closes, when its host dies, when a start fails."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from broker.errors import SandboxLost
from broker.sandbox.base import Role, SandboxFactory
from broker.sandbox.bubblewrap import BubblewrapFactory
from broker.sandbox.check import PROOF_LIMITS
from broker.sandbox.docker import DockerFactory
from broker.sandbox.factory import Kind, check_sandbox, open_factory, sweep
from broker.sandbox.labels import process_mark
from tests.fixtures.leftovers import left_by, marked_processes, settles
from tests.fixtures.sandbox_probe import CACHE, SMALL, execute, execution, open_or_skip, sandbox_runtime

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["bubblewrap", "docker"])
async def factory(request: pytest.FixtureRequest) -> AsyncIterator[SandboxFactory]:
    factory = open_or_skip(request.param)
    yield factory
    await factory.close()


async def test_closing_kills_everything_inside_and_may_be_repeated(factory: SandboxFactory) -> None:
    async with execution(factory) as sandbox:
        flee = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(999)"
        await execute(sandbox, flee)
        await asyncio.gather(sandbox.close(), sandbox.close())
        await sandbox.close()
        with pytest.raises(SandboxLost, match="closed"):
            await execute(sandbox, "print(1)")


SCRIPT = """
import asyncio, sys
sys.path.insert(0, {root!r})
from broker.sandbox.labels import process_mark
from tests.fixtures.sandbox_probe import *
async def main():
    limits = {{role: value.model_copy(update={{"wall_seconds": {seconds}}}) for role, value in SMALL.items()}}
    factory = open_factory({kind!r}, sandbox_runtime(), CACHE, limits)
    sandboxes = [await factory.start(role) for role in Role for _ in range(2)]
    await sandboxes[-1].send({{"op": "execute", "seconds": 60, "code":
        "import os\\nif os.fork() == 0:\\n    os.setsid()\\nwhile True: pass"}})
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["bubblewrap", "docker"])
async def test_a_killed_host_leaves_nothing_running(kind: Kind) -> None:
    await open_or_skip(kind).close()
    seconds = 1000.0 + os.getpid() % 1000 + 0.125
    mark = f'"wall_seconds": {seconds}'
    script = SCRIPT.format(root=str(ROOT), kind=kind, seconds=seconds)
    pipe = asyncio.subprocess.PIPE
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=pipe, cwd=ROOT)
    assert host.stdout is not None
    assert await host.stdout.readline() == b"ready\n"
    assert len(marked_processes(mark)) >= 6, "four sandboxes, one with a worker and its child"
    host.send_signal(signal.SIGKILL)
    await host.wait()
    assert await settles(lambda: left_by(host.pid, mark) == [], within=2.0), left_by(host.pid, mark)


async def test_a_process_that_outlived_its_host_is_swept() -> None:
    code = "import time; time.sleep(60)"
    orphan = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, process_mark().rpartition(":")[0] + ":1-1"
    )
    own = await asyncio.create_subprocess_exec(sys.executable, "-c", code, process_mark())
    await asyncio.sleep(0.1)
    sweep()
    assert await orphan.wait() == -signal.SIGKILL
    assert own.returncode is None
    own.kill()
    await own.wait()


@pytest.mark.parametrize("kind", ["bubblewrap", "docker"])
async def test_a_cancelled_start_leaves_nothing(kind: Kind) -> None:
    await open_or_skip(kind).close()
    seconds = 3000.0 + os.getpid() % 1000 + 0.25
    limits = {role: value.model_copy(update={"wall_seconds": seconds}) for role, value in SMALL.items()}
    factory = open_factory(kind, sandbox_runtime(), CACHE, limits)
    for delay in (0.0, 0.005, 0.02, 0.05):
        starting = asyncio.ensure_future(factory.start(Role.EXECUTION))
        await asyncio.sleep(delay)
        starting.cancel()
        try:
            sandbox = await starting
        except asyncio.CancelledError:
            continue
        await sandbox.close()  # it was ready before the cancellation came
    assert await settles(lambda: marked_processes(f'"wall_seconds": {seconds}') == [], within=3.0)
    await factory.close()


async def test_many_starts_at_once_all_work(factory: SandboxFactory) -> None:
    sandboxes = await asyncio.gather(*(factory.start(Role.EXECUTION) for _ in range(8)))
    seen = await asyncio.gather(*(execute(sandbox, f"print({i})") for i, sandbox in enumerate(sandboxes)))
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    assert [observation["stdout"] for observation in seen] == [f"{i}\n" for i in range(8)]


async def test_a_sandbox_ends_by_itself_at_its_deadline() -> None:
    limits = {role: value.model_copy(update={"wall_seconds": 0.5}) for role, value in SMALL.items()}
    factory = open_factory("bubblewrap", sandbox_runtime(), CACHE, limits)
    async with execution(factory) as sandbox:
        await sandbox.send({"op": "execute", "code": "while True: pass", "seconds": 60})
        with pytest.raises(SandboxLost):
            await sandbox.receive(5)
    await factory.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another user")
async def test_root_works_from_a_checkout_that_nobody_else_may_enter(tmp_path: Path) -> None:
    """The root folder, the lake and its files are closed to the user that runs inside."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    runtime = sandbox_runtime()
    shutil.copytree(runtime.root, closed / "root", copy_function=os.link, symlinks=True)
    (closed / "lake").mkdir(mode=0o700)
    (closed / "lake" / "table").write_text("found")
    (closed / "lake" / "table").chmod(0o600)
    factory = BubblewrapFactory(replace(runtime, root=closed / "root"), closed, SMALL)
    async with execution(factory, lake=closed / "lake") as sandbox:
        code = "import os\nprint(open('/lake/table').read(), os.getuid(), os.getgroups())"
        observation = await execute(sandbox, code)
        assert (observation["stdout"], observation["error"]) == ("found 65534 []\n", "")
    await factory.close()


async def test_doctor_proves_the_isolation_from_inside(factory: SandboxFactory) -> None:
    # As `rinr doctor` opens it: the limits that the proofs run into.
    proved = open_factory(cast("Kind", factory.kind), sandbox_runtime(), CACHE, PROOF_LIMITS)
    checks = await check_sandbox(proved)
    await proved.close()
    names = {check.name for check in checks}
    assert {"network", "lake is read-only", "processes", "open files", "escape list"} <= names
    assert {"vsock and other sockets", "memory of a process", "memory of a sandbox", "processors"} <= names
    assert all(check.detail for check in checks), "what was seen is always said"
    assert [check for check in checks if check.passed is False] == []
    unprovable = {check.name for check in checks if check.passed is None}
    needed = {"memory of a sandbox": "oom", "processors": "cpus"}
    assert unprovable == {name for name, means in needed.items() if means not in factory.proves}


@pytest.mark.slow
async def test_doctor_sees_each_wall_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same proofs on a container with open doors."""
    factory = open_or_skip("docker")
    assert isinstance(factory, DockerFactory)
    walled = factory._options

    def open_doors(*arguments: Any) -> dict[str, Any]:
        options = walled(*arguments)
        settings = json.loads(options["command"][-1])
        del settings["filter"]
        many = {"open_files": 200_000, "memory_bytes": 1 << 43, "file_bytes": 1 << 30}
        settings["limits"] |= many
        options["command"][-1] = json.dumps(settings)
        for mount in options["mounts"]:
            mount["ReadOnly"] = False
        return options | {
            "user": "0:0",
            "network_mode": "host",
            "hostname": None,
            "read_only": False,
            "tmpfs": {},
            "cap_drop": [],
            "security_opt": ["seccomp=unconfined"],
            "pids_limit": None,
            "mem_limit": None,
            "memswap_limit": None,
            "nano_cpus": None,
            "ulimits": [],
        }

    monkeypatch.setattr(factory, "_options", open_doors)
    failed = {check.name for check in await check_sandbox(factory) if check.passed is False}
    await factory.close()
    assert failed >= {"network", "vsock and other sockets", "lake is read-only", "root is read-only"}
    assert failed >= {"escape list", "processes", "open files", "memory of a sandbox"}
    assert "processors" in failed or len(os.sched_getaffinity(0)) == 1


def test_a_machine_without_a_sandbox_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    with pytest.raises(SandboxLost, match="apt-get install bubblewrap"):
        open_factory("auto", sandbox_runtime(), CACHE)
    with pytest.raises(SandboxLost, match="start docker"):
        open_factory("docker", sandbox_runtime(), CACHE)


def test_a_kernel_that_cannot_stop_a_fork_bomb_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = os.uname()
    for release in ("4.18.0-553.el8.x86_64", "5.10.0-28-amd64", "5.13.19", "strange"):
        old = os.uname_result((known.sysname, known.nodename, release, known.version, known.machine))
        monkeypatch.setattr(os, "uname", lambda old=old: old)
        with pytest.raises(SandboxLost, match="start docker"):
            BubblewrapFactory(sandbox_runtime(), tmp_path, SMALL)


async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    broken = replace(sandbox_runtime(), python="/usr/bin/absent")
    try:
        factory = BubblewrapFactory(broken, tmp_path, SMALL)
    except SandboxLost as error:
        pytest.skip(str(error))
    with pytest.raises(SandboxLost, match="absent"):
        await factory.start(Role.CONTROLLER)
    await factory.close()
