"""What a zygote's death costs, what happens where none can work, and what a dead host leaves of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import SandboxLost
from broker.sandbox import bubblewrap, bubblewrap_command
from broker.sandbox.base import Role, Sandbox
from broker.sandbox.bubblewrap import BubblewrapFactory
from tests.fixtures.leftovers import inside, left_by, marked_processes, numbers_of, settles, zygote_of
from tests.fixtures.sandbox_probe import execute, open_or_skip
from tests.fixtures.zygotes import MARK, ROOT, a_factory, as_root, bearing, here, printed

__all__ = ["bearing"]


async def starts(factory: BubblewrapFactory, count: int) -> list[Sandbox | BaseException]:
    """So many at once; asked for when this returns to the loop the next time."""
    return await asyncio.gather(
        *(factory.start(Role.EXECUTION) for _ in range(count)), return_exceptions=True
    )


@as_root
@pytest.mark.spec("HOST-07")
async def test_a_zygote_killed_in_the_middle_of_a_start_costs_that_start_and_is_replaced(
    bearing: BubblewrapFactory,
) -> None:
    running = await bearing.start(Role.EXECUTION)
    await execute(running, "x = 41")
    killed = zygote_of(MARK, Role.EXECUTION)
    os.kill(killed, signal.SIGSTOP)
    starting = asyncio.ensure_future(starts(bearing, 2))
    await asyncio.sleep(0.2)
    os.kill(killed, signal.SIGKILL)
    for lost in await starting:
        assert isinstance(lost, SandboxLost)
    assert (await execute(running, "print(x + 1)"))["stdout"] == "42\n", "what it bore lives on"
    fresh = await bearing.start(Role.EXECUTION)
    assert (await execute(fresh, "print(1)"))["stdout"] == "1\n"
    assert zygote_of(MARK, Role.EXECUTION) != killed
    assert bearing.nursery.fault == ""
    for sandbox in (running, fresh):
        await sandbox.close()


@as_root
@pytest.mark.spec("HOST-07")
async def test_after_its_second_death_sandboxes_are_started_one_by_one(bearing: BubblewrapFactory) -> None:
    for _ in range(2):
        await (await bearing.start(Role.EXECUTION)).close()
        killed = zygote_of(MARK, Role.EXECUTION)
        os.kill(killed, signal.SIGKILL)
        assert await settles(lambda: not Path(f"/proc/{killed}").exists(), within=3.0)  # noqa: B023
    for role in reversed(Role):
        sandbox = await bearing.start(role)
        assert bearing.nursery.fault == "a zygote died 2 times"
        (pid,) = inside(MARK, role)
        assert len(numbers_of(Path(f"/proc/{pid}"))) == 2, "no zygote's child"
        await sandbox.close()


@as_root
@pytest.mark.spec("HOST-07")
async def test_a_frozen_zygote_is_given_up_and_replaced(
    bearing: BubblewrapFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "BIRTH_SECONDS", 1.0)
    running = await bearing.start(Role.EXECUTION)
    frozen = zygote_of(MARK, Role.EXECUTION)
    os.kill(frozen, signal.SIGSTOP)
    lost = await starts(bearing, 2)
    assert [type(one) for one in lost] == [SandboxLost] * 2
    # It is killed at the first one's end, which the other then sees.
    assert "no child of a zygote within 1 s" in str(lost)
    assert (await execute(running, "print(1)"))["stdout"] == "1\n", "what it bore lives on"
    await running.close()
    assert await settles(lambda: not Path(f"/proc/{frozen}").exists(), within=3.0), "it is killed"
    monkeypatch.undo()
    await (await bearing.start(Role.EXECUTION)).close()
    assert zygote_of(MARK, Role.EXECUTION) != frozen


@as_root
@pytest.mark.spec("HOST-07")
async def test_a_zygote_that_may_not_fork_loses_the_start_and_goes_on(bearing: BubblewrapFactory) -> None:
    await (await bearing.start(Role.EXECUTION)).close()
    zygote = zygote_of(MARK, Role.EXECUTION)
    group = Path(f"/sys/fs/cgroup/pids/rinr-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "pids.max").write_text("1")
        (group / "cgroup.procs").write_text(str(zygote))
    except OSError as error:
        pytest.skip(f"no group that limits processes: {error}")
    try:
        with pytest.raises(SandboxLost, match="cannot start a sandbox: BlockingIOError"):
            await bearing.start(Role.EXECUTION)
    finally:
        (group.parent / "cgroup.procs").write_text(str(zygote))
        group.rmdir()
    await (await bearing.start(Role.EXECUTION)).close()
    assert zygote_of(MARK, Role.EXECUTION) == zygote


def without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap_command, "_ZYGOTE_RIGHTS", ())


def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap_command, "_ZYGOTE_PROC", "/nowhere")


def without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap_command, "_DEVICES", ())


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (without_rights, "unshare: Operation not permitted"),
        (without_processes, "bwrap: "),
        (without_devices, "/dev/null"),
    ],
)
async def test_where_zygotes_cannot_work_sandboxes_start_without_them_and_it_is_known_why(
    broken: Callable[[pytest.MonkeyPatch], None], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = here()
    factory = await a_factory()
    broken(monkeypatch)
    seen = await asyncio.gather(*(factory.start(Role.EXECUTION) for _ in range(3)))
    assert fault in factory.nursery.fault
    for sandbox in seen:
        assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"
        await sandbox.close()
    await factory.close()
    assert await settles(lambda: here() <= before, within=3.0)


async def test_a_tasks_own_files_are_shown_to_a_sandbox_of_its_own(
    bearing: BubblewrapFactory, tmp_path: Path
) -> None:
    (tmp_path / "gel.txt").write_text("lane 1")
    for assets in (None, tmp_path):
        sandbox = await bearing.start(Role.EXECUTION, assets=assets)
        found = await printed(sandbox, "import os\nprint(os.listdir('/assets'))")
        assert found == ("['gel.txt']" if assets else "[]")
        await sandbox.close()


HOST = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.fixtures.sandbox_probe import *

async def main():
    factory = open_factory("bubblewrap", sandbox_runtime(), CACHE, SMALL)
    kept = [await factory.start(role) for role in Role]
    print("ready", factory.nursery.fault, flush=True)
    while True:
        await asyncio.gather(*(factory.start(role) for role in Role for _ in range(3)))

asyncio.run(main())
"""


async def a_host() -> tuple[asyncio.subprocess.Process, str]:
    """A process that starts sandboxes without end, and its mark."""
    await open_or_skip("bubblewrap").close()
    pipe = asyncio.subprocess.PIPE
    code = HOST.format(root=str(ROOT))
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=pipe, cwd=ROOT)
    assert host.stdout is not None
    assert (await host.stdout.readline()).strip() == b"ready"
    return host, f"{MARK.rpartition(':')[0]}:{host.pid}-"


@pytest.mark.parametrize("frozen", [False, True], ids=["", "its zygotes frozen"])
async def test_a_host_killed_in_the_middle_of_a_start_leaves_no_process(frozen: bool) -> None:
    host, mark = await a_host()
    if frozen:
        for pid in marked_processes(mark, zygotes=True):
            os.kill(pid, signal.SIGSTOP)
    else:
        await asyncio.sleep(0.1)
    assert len(marked_processes(mark)) >= 4
    host.kill()
    await host.wait()
    assert await settles(lambda: left_by(host.pid, mark) == [], within=5.0), left_by(host.pid, mark)


ORDINARY = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
from tests.fixtures.sandbox_probe import *

async def main():
    factory = open_factory("bubblewrap", sandbox_runtime(), CACHE, SMALL)
    async with execution(factory) as sandbox:
        seen = await execute(sandbox, "import os; print(os.getuid(), os.getgroups())")
    frames = await converse(factory, "def run(task, api):\\n    api.submit('done')")
    print(os.geteuid(), seen["stdout"].strip(), frames[0]["text"], repr(factory.nursery.fault))
    await factory.close()

asyncio.run(main())
"""


def test_an_ordinary_user_has_zygotes_too() -> None:
    """Here: this user in a name space of users where he is number 1000, and has no right that root has."""
    command = ["unshare", "--user", "--map-user=1000", "--map-group=1000", sys.executable, "-c"]
    done = subprocess.run(
        [*command, ORDINARY.format(root=str(ROOT))], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if "unshare" in done.stderr and "failed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.strip() == "1000 65534 [] done ''", done.stderr
