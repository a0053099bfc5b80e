"""Start and end: what is left when a sandbox closes, when its host dies, when a start fails."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from broker.errors import SandboxLost
from broker.sandbox.base import DEFAULT_LIMITS, Role, SandboxFactory, identity_of
from broker.sandbox.bubblewrap import BubblewrapFactory
from broker.sandbox.factory import Kind, check_sandbox, open_factory, sweep
from broker.sandbox.labels import HOST, process_mark
from tests.fixtures.sandbox_probe import CACHE, SMALL, execute, execution, open_or_skip, sandbox_runtime

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["bubblewrap", "docker"])
async def factory(request: pytest.FixtureRequest) -> AsyncIterator[SandboxFactory]:
    factory = open_or_skip(request.param)
    yield factory
    await factory.close()


def sandbox_processes(mark: str) -> list[int]:
    """Live processes whose command line holds the mark; the mark is in the settings of process 1."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def gone(mark: str, within: float) -> bool:
    end = time.monotonic() + within
    while sandbox_processes(mark):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.02)
    return True


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
from broker.sandbox.labels import HOST, process_mark
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
    assert len(sandbox_processes(mark)) >= 6, "four sandboxes, one with a worker and its child"
    host.send_signal(signal.SIGKILL)
    await host.wait()
    assert await gone(mark, within=2.0)
    sweep()
    assert list(Path("/sys/fs/cgroup").glob(f"**/rinr-{host.pid}-*")) == []
    assert list(Path(tempfile.gettempdir()).glob(f"rinr-{host.pid}-*")) == []
    if kind == "docker":
        containers = docker.from_env().containers.list(all=True, filters={"label": HOST})
        assert [one for one in containers if one.labels[HOST].startswith(f"{host.pid}-")] == []


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
    assert await gone(f'"wall_seconds": {seconds}', within=3.0)
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
    checks = await check_sandbox(factory)
    assert len(checks) == 10
    assert [check for check in checks if not check.passed] == []


def test_a_machine_without_a_sandbox_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    with pytest.raises(SandboxLost, match="apt-get install bubblewrap"):
        open_factory("auto", sandbox_runtime(), CACHE)
    with pytest.raises(SandboxLost, match="start docker"):
        open_factory("docker", sandbox_runtime(), CACHE)


async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    broken = replace(sandbox_runtime(), python="/usr/bin/absent")
    try:
        factory = BubblewrapFactory(broken, tmp_path, SMALL)
    except SandboxLost as error:
        pytest.skip(str(error))
    with pytest.raises(SandboxLost, match="absent"):
        await factory.start(Role.CONTROLLER)
    await factory.close()


def test_the_identity_pins_the_environment_the_filter_and_the_limits() -> None:
    base = identity_of("bubblewrap", "sha256:a", b"filter", DEFAULT_LIMITS)
    assert base == identity_of("bubblewrap", "sha256:a", b"filter", dict(DEFAULT_LIMITS))
    others = {
        identity_of("docker", "sha256:a", b"filter", DEFAULT_LIMITS),
        identity_of("bubblewrap", "sha256:b", b"filter", DEFAULT_LIMITS),
        identity_of("bubblewrap", "sha256:a", b"other", DEFAULT_LIMITS),
        identity_of("bubblewrap", "sha256:a", b"filter", SMALL),
    }
    assert len(others | {base}) == 5


def test_the_execution_environment_is_found_again_and_names_its_libraries() -> None:
    first, again = sandbox_runtime(), sandbox_runtime.__wrapped__()
    assert first == again
    assert {"numpy 2.3.5", "pandas 2.3.3"} <= set(first.libraries)
    assert first.digest.startswith("sha256:")
