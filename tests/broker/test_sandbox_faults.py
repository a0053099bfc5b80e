"""Real faults: a killed host, a killed daemon, a frozen process 1, a full disk. None may become an answer.

What a program did is an outcome; what happened to its sandbox is `SandboxLost`, and nothing is left behind.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import broker.tools
from broker.attempt import Lost
from broker.errors import SandboxLost
from broker.sandbox.base import Role, SandboxFactory
from broker.sandbox.factory import Kind, open_factory
from broker.sandbox.mounts import readable_by_others
from broker.sandbox.runtime import build_runtime
from broker.tools import ExecutionSession
from catalog.errors import StoreError
from catalog.store import Store
from tests.fixtures.docker_daemon import Daemon
from tests.fixtures.episodes import ScriptedModel, attempt, make_broker
from tests.fixtures.leftovers import containers_of, inside, left_by, marked_processes, settles
from tests.fixtures.sandbox_probe import CACHE, SMALL, execute, execution, open_or_skip, sandbox_runtime
from tests.fixtures.sandboxes import BACK_ENDS

ROOT = Path(__file__).parents[2]
PROGRAM = """
def run(task, api):
    asked = [{"role": "user", "content": task["prompt"]}]
    for number in range(3):
        api.generate(asked)
        api.execute(f"import os\\nopen('/work/{number}', 'w').write('x' * 99)\\nprint(os.listdir('/work'))")
    api.submit("<answer>A</answer>")
"""


@pytest.fixture(params=BACK_ENDS)
async def factory(request: pytest.FixtureRequest) -> AsyncIterator[SandboxFactory]:
    factory = open_or_skip(request.param)
    yield factory
    await factory.close()


def marked_limits(seconds: float) -> tuple[dict[Role, Any], str]:
    """Limits that stand in the command line of these sandboxes and of no others, and how they stand there."""
    limits = {role: value.model_copy(update={"wall_seconds": seconds}) for role, value in SMALL.items()}
    return limits, f'"wall_seconds": {seconds}'


# --- A killed host -----------------------------------------------------------------------------------------

HOST = """
import asyncio, pathlib, sys
sys.path.insert(0, {root!r})
from tests.fixtures import episodes
from tests.fixtures.releases import tiny_release
from tests.fixtures.sandbox_probe import *
prepared = tiny_release(pathlib.Path({folder!r}))
episodes.release = lambda: prepared

async def main():
    limits = {{role: value.model_copy(update={{"wall_seconds": {seconds}}}) for role, value in SMALL.items()}}
    broker = episodes.make_broker(
        episodes.ScriptedModel("I look."), open_factory({kind!r}, sandbox_runtime(), CACHE, limits), limit=3
    )
    print("ready", flush=True)
    while True:
        await broker.run_all([episodes.attempt({program!r}) for _ in range(6)])

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", BACK_ENDS)
async def test_twenty_hosts_killed_at_random_moments_of_their_episodes_leave_nothing(
    kind: Kind, tmp_path: Path
) -> None:
    await open_or_skip(kind).close()
    moments = random.Random(f"killed hosts, {kind}")
    seen = 0
    for number in range(20):
        _, mark = marked_limits(seconds := 5000.0 + os.getpid() % 1000 + number / 64)
        (folder := tmp_path / str(number)).mkdir()
        code = HOST.format(root=str(ROOT), folder=str(folder), seconds=seconds, kind=kind, program=PROGRAM)
        pipe = asyncio.subprocess.PIPE
        host = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=pipe, cwd=ROOT)
        assert host.stdout is not None
        assert await host.stdout.readline() == b"ready\n"
        await asyncio.sleep(moments.uniform(0.0, 1.5))
        seen += len(left_by(host.pid, mark))
        host.send_signal(signal.SIGKILL)
        await host.wait()
        assert await settles(lambda: left_by(host.pid, mark) == [], within=2.0), (  # noqa: B023
            number,
            left_by(host.pid, mark),
        )
    assert seen > 40, "they were killed while sandboxes ran"


# --- A killed daemon ---------------------------------------------------------------------------------------


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.stop()


@pytest.mark.slow
async def test_a_killed_daemon_ends_no_episode_with_an_answer_that_was_not_given(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon.unix)
    limits, mark = marked_limits(6000.0 + os.getpid() % 1000 + 0.125)
    factory = open_factory("docker", sandbox_runtime(), CACHE, limits)
    sandbox = await factory.start(Role.EXECUTION)
    await execute(sandbox, "x = 41")
    calls = 0

    def killing(prompt: str, sampling: object) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            daemon.kill()
        return "I look."

    made = make_broker(ScriptedModel(policy=killing), factory, retries=1, limit=1)
    results = await made.run_all([attempt(PROGRAM) for _ in range(3)], masked_ok=True)
    assert not daemon.answers()
    # The first had its sandboxes: they go on over their own socket. The others got none.
    first, *others = results
    assert not isinstance(first, Lost)
    assert len(first.record.tool_calls) == 3
    assert all(call.error == "" for call in first.record.tool_calls)
    assert all(isinstance(other, Lost) and "SandboxLost" in other.error for other in others)
    assert (await execute(sandbox, "print(x + 1)"))["stdout"] == "42\n", "a running sandbox goes on"
    with pytest.raises(SandboxLost):
        await factory.start(Role.EXECUTION)
    await sandbox.close()
    assert await settles(lambda: marked_processes(mark) == [], within=2.0), "they end with their channel"
    daemon.start()
    assert len(containers_of(os.getpid())) == 3, "it could not remove them, and remembers them"
    await (await factory.start(Role.EXECUTION)).close()
    assert containers_of(os.getpid()) == []
    await factory.close()


# --- A frozen process 1 ------------------------------------------------------------------------------------


def freeze(mark: str, role: Role) -> None:
    """SIGSTOP for the process 1 of every marked sandbox with this role."""
    found = inside(mark, role)
    assert found, "there was one to freeze"
    for pid in found:
        os.kill(pid, signal.SIGSTOP)


@pytest.fixture(params=BACK_ENDS)
async def marked(request: pytest.FixtureRequest) -> AsyncIterator[tuple[SandboxFactory, str]]:
    await open_or_skip(request.param).close()
    limits, mark = marked_limits(7000.0 + os.getpid() % 1000 + 0.25)
    factory = open_factory(request.param, sandbox_runtime(), CACHE, limits)
    yield factory, mark
    await factory.close()
    assert await settles(lambda: marked_processes(mark) == [], within=2.0), "a frozen one is removed, too"


@pytest.mark.spec("HOST-07")
async def test_a_frozen_execution_sandbox_is_lost_and_not_a_slow_call(
    marked: tuple[SandboxFactory, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    factory, mark = marked
    monkeypatch.setattr(broker.tools, "_GRACE_SECONDS", 2.0)
    session = ExecutionSession(factory, lake=None, assets=None)
    assert (await session.execute("print(1)", 5)).stdout == "1\n"
    freeze(mark, Role.EXECUTION)
    with pytest.raises(SandboxLost, match="did not end a call"):
        await session.execute("print(2)", 0.5)
    await session.close()


@pytest.mark.spec("HOST-07")
async def test_a_frozen_controller_is_lost_and_not_a_slow_program(
    marked: tuple[SandboxFactory, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    factory, mark = marked

    def freezing(prompt: str, sampling: object) -> str:
        freeze(mark, Role.CONTROLLER)
        return "I look."

    model = ScriptedModel(policy=freezing)
    made = make_broker(model, factory, retries=0, limit=1, seconds=2)
    (result,) = await made.run_all([attempt(PROGRAM)], masked_ok=True)
    assert isinstance(result, Lost)
    assert "frozen" in result.error


async def test_a_program_that_only_takes_long_is_not_taken_for_frozen(factory: SandboxFactory) -> None:
    slow = PROGRAM.replace("    api.submit", "    while True: pass\n    api.submit")
    (result,) = await make_broker(ScriptedModel("x"), factory, retries=0, seconds=3).run_all([attempt(slow)])
    assert not isinstance(result, Lost)
    assert result.record.stop_reason == "time_budget"


# --- A full disk -------------------------------------------------------------------------------------------


async def test_a_full_disk_in_the_sandbox_is_what_the_program_observes(factory: SandboxFactory) -> None:
    full = PROGRAM.replace("'x' * 99", "'x' * (1 << 28)")
    (result,) = await make_broker(ScriptedModel("x"), factory).run_all([attempt(full)])
    assert not isinstance(result, Lost)
    assert result.record.stop_reason == "first_answer"
    for call in result.record.tool_calls:
        assert call.error.splitlines()[-1].startswith(("OSError", "MemoryError"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of the host on which nothing fits any more; no file and no folder."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=4", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        for number in range(3):
            (disk / f"filler-{number}").write_bytes(b"x" * 4096)
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=False)


async def test_a_full_disk_under_the_sockets_loses_the_sandbox(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = open_or_skip("docker")
    monkeypatch.setattr(factory, "_folder", small_disk)
    with pytest.raises(SandboxLost, match="make room"):
        await factory.start(Role.EXECUTION)
    monkeypatch.undo()
    async with execution(factory) as sandbox:
        assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n", "with room it works again"
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(SandboxLost, match="make room"):
        open_factory("docker", sandbox_runtime(), CACHE, SMALL)
    await factory.close()


def test_a_full_disk_under_the_cache_is_a_clear_loss_and_nothing_half_built_stays(
    small_disk: Path, tmp_path: Path
) -> None:
    with pytest.raises(SandboxLost, match=r"make room or set storage\.cache"):
        build_runtime(CACHE / "sandbox-packages", small_disk)
    closed = tmp_path / "lake"
    closed.mkdir(mode=0o700)
    (closed / "table").write_text("x" * 9_000)
    with pytest.raises(SandboxLost, match=r"make room or set storage\.cache"):
        readable_by_others(closed, small_disk)
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler-0", "filler-1", "filler-2"]


def test_a_full_disk_under_the_store_is_an_error_of_the_store(small_disk: Path) -> None:
    with pytest.raises(StoreError):
        Store(small_disk / "store").put_blob(b"x" * 9_000)
