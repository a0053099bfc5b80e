"""The warm pool: what is handed out is fresh, fits, lives, and nothing of it is left behind."""

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from broker.errors import SandboxLost
from broker.sandbox.base import Role, Sandbox
from broker.sandbox.factory import Kind, open_factory, sweep
from broker.sandbox.pool import SandboxPool
from tests.fixtures.episodes import ScriptedModel, attempt, make_broker
from tests.fixtures.fake_sandbox import FakeFactory, FakeSandbox
from tests.fixtures.leftovers import inside, marked_processes, settles
from tests.fixtures.sandbox_probe import CACHE, SMALL, execute, open_or_skip, sandbox_runtime

ROOT = Path(__file__).parents[2]
LAKE = Path("/lakes/one")


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.005)


@pytest.fixture(params=["bubblewrap", "docker"])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[SandboxPool]:
    pool = SandboxPool(open_or_skip(request.param), 4)
    yield pool
    await pool.close()


async def test_a_second_episode_finds_a_sandbox_waiting(pool: SandboxPool, tmp_path: Path) -> None:
    (tmp_path / "table").write_text("found")
    for warm in (0, 1):
        sandbox = await pool.start(Role.EXECUTION, lake=tmp_path)
        assert pool.warm == warm
        seen = await execute(sandbox, "print(open('/lake/table').read())")
        assert seen["stdout"] == "found\n"
        await sandbox.close()
        await until(lambda: pool.waiting() == 4)


@pytest.mark.spec("HOST-09")
async def test_no_state_goes_from_one_pooled_sandbox_to_the_next(pool: SandboxPool) -> None:
    first = await pool.start(Role.EXECUTION)
    await until(lambda: pool.waiting() == 4)
    mark = "x = 1; open('/work/mark', 'w').close(); open('/tmp/mark', 'w').close()"
    assert (await execute(first, mark))["error"] == ""
    await first.close()
    for _ in range(5):
        sandbox = await pool.start(Role.EXECUTION)
        look = "import os; print('x' in globals(), os.listdir('/work'), os.listdir('/tmp'))"
        assert (await execute(sandbox, look))["stdout"] == "False [] []\n"
        await sandbox.close()
    assert pool.warm >= 4


async def test_a_waiting_sandbox_that_died_is_never_handed_out() -> None:
    seconds = 5000.0 + os.getpid() % 1000 + 0.5
    limits = {role: value.model_copy(update={"wall_seconds": seconds}) for role, value in SMALL.items()}
    await open_or_skip("bubblewrap").close()
    pool = SandboxPool(open_factory("bubblewrap", sandbox_runtime(), CACHE, limits), 2)
    sandbox = await pool.start(Role.EXECUTION)
    await sandbox.close()
    await until(lambda: pool.waiting() == 2)
    for pid in marked_processes(f'"wall_seconds": {seconds}'):
        with contextlib.suppress(ProcessLookupError):  # the one before may have been its parent
            os.kill(pid, signal.SIGKILL)
    while marked_processes(f'"wall_seconds": {seconds}'):
        # The event loop shall have noticed nothing when the next one asks.
        time.sleep(0.01)  # noqa: ASYNC251
    sandbox = await pool.start(Role.EXECUTION)
    assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"
    assert (pool.warm, pool.cold) == (0, 2)
    await sandbox.close()
    await pool.close()


@pytest.mark.spec("HOST-07")
@pytest.mark.parametrize("kind", ["bubblewrap", "docker"])
async def test_a_waiting_sandbox_that_is_frozen_is_never_handed_out(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 4000.0 + os.getpid() % 1000 + 0.5
    mark = f'"wall_seconds": {seconds}'
    limits = {role: value.model_copy(update={"wall_seconds": seconds}) for role, value in SMALL.items()}
    await open_or_skip(kind).close()
    pool = SandboxPool(open_factory(kind, sandbox_runtime(), CACHE, limits), 2)
    sandbox = await pool.start(Role.EXECUTION)
    await sandbox.close()
    await until(lambda: pool.waiting() == 2)
    first, second = inside(mark, Role.EXECUTION)
    os.kill(first, signal.SIGSTOP)
    os.kill(second, signal.SIGSTOP)
    monkeypatch.setattr("broker.sandbox.pool.ANSWER_SECONDS", 0.2)
    began = time.monotonic()
    sandbox = await pool.start(Role.EXECUTION)
    assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"
    assert (pool.warm, pool.cold) == (0, 2)
    assert time.monotonic() - began < 10
    assert not {first, second} & set(marked_processes(mark)), "they are destroyed"
    await sandbox.close()
    await pool.close()
    assert await settles(lambda: marked_processes(mark) == [], within=2.0)


async def test_closing_the_pool_leaves_no_process_running() -> None:
    seconds = 6000.0 + os.getpid() % 1000 + 0.5
    limits = {role: value.model_copy(update={"wall_seconds": seconds}) for role, value in SMALL.items()}
    await open_or_skip("bubblewrap").close()
    mark = f'"wall_seconds": {seconds}'
    for delay in (0.0, 0.03, 0.3):  # nothing made yet, one in the making, some waiting
        pool = SandboxPool(open_factory("bubblewrap", sandbox_runtime(), CACHE, limits), 4)
        await (await pool.start(Role.CONTROLLER)).close()
        await asyncio.sleep(delay)
        await pool.close()
        await pool.close()
        assert await settles(lambda: marked_processes(mark) == [], within=1.0)
        with pytest.raises(SandboxLost, match="closed"):
            await pool.start(Role.CONTROLLER)


def test_a_pool_ends_with_its_event_loop_and_serves_the_next_one() -> None:
    inner = FakeFactory()
    pool = SandboxPool(inner, 2)

    async def episode() -> None:
        await (await pool.start(Role.CONTROLLER)).close()
        await until(lambda: pool.waiting() == 2)

    for _ in range(2):
        asyncio.run(episode())
        assert inner.closed == len(inner.started), "a sandbox outlived the loop that its channel belongs to"
    asyncio.run(pool.close())


SCRIPT = """
import asyncio, sys
sys.path.insert(0, {root!r})
from broker.sandbox.pool import SandboxPool
from tests.fixtures.sandbox_probe import *
async def main():
    limits = {{role: value.model_copy(update={{"wall_seconds": {seconds}}}) for role, value in SMALL.items()}}
    pool = SandboxPool(open_factory({kind!r}, sandbox_runtime(), CACHE, limits), 4)
    used = [await pool.start(role) for role in Role]
    while pool.waiting() < 4:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["bubblewrap", "docker"])
async def test_a_killed_host_leaves_nothing_of_its_pool(kind: str) -> None:
    await open_or_skip(kind).close()
    seconds = 7000.0 + os.getpid() % 1000 + 0.125
    mark = f'"wall_seconds": {seconds}'
    script = SCRIPT.format(root=str(ROOT), kind=kind, seconds=seconds)
    pipe = asyncio.subprocess.PIPE
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=pipe, cwd=ROOT)
    assert host.stdout is not None
    assert await host.stdout.readline() == b"ready\n"
    assert len(marked_processes(mark)) >= 6, "two in use and four waiting"
    host.send_signal(signal.SIGKILL)
    await host.wait()
    assert await settles(lambda: marked_processes(mark) == [], within=5.0)
    sweep()
    assert list(Path("/sys/fs/cgroup").glob(f"**/rinr-{host.pid}-*")) == []
    assert list(Path(tempfile.gettempdir()).glob(f"rinr-{host.pid}-*_sockets_*")) == []


async def test_the_pool_never_holds_more_than_its_size_and_shares_it_between_wants() -> None:
    inner = FakeFactory()
    pool = SandboxPool(inner, 5)
    for _ in range(20):
        await (await pool.start(Role.CONTROLLER)).close()
        await (await pool.start(Role.EXECUTION, lake=LAKE)).close()
        assert pool.waiting() <= 5
        await asyncio.sleep(0.001)
    await until(lambda: pool.waiting() == 5)
    assert len(inner.started) - inner.closed == 5
    assert len(inner.started) == 45, "one was made for each that was used, and none in vain"
    waiting = [role for role, _, _ in inner.started[-5:]]
    assert {waiting.count(role) for role in Role} == {2, 3}
    await pool.close()
    assert len(inner.started) == inner.closed


class Marked(FakeFactory):
    """Remembers what each sandbox was made for."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Sandbox, tuple[Role, Path | None, Path | None]] = {}

    async def start(self, role: Role, *, lake: Path | None = None, assets: Path | None = None) -> FakeSandbox:
        sandbox = await super().start(role, lake=lake, assets=assets)
        self.made[sandbox] = (role, lake, assets)
        return sandbox


@pytest.mark.spec("HOST-02")
async def test_a_sandbox_is_only_given_to_who_asked_for_its_mounts() -> None:
    inner = Marked()
    pool = SandboxPool(inner, 16)
    folders = [None, LAKE, Path("/lakes/two")]
    wants = [(Role.EXECUTION, lake, assets) for lake in folders for assets in folders]
    for role, lake, assets in 3 * [*wants, (Role.CONTROLLER, None, None)]:
        sandbox = await pool.start(role, lake=lake, assets=assets)
        assert inner.made.pop(sandbox) == (role, lake, assets), "used twice, or made for something else"
        await sandbox.close()
        await asyncio.sleep(0.005)
    assert pool.warm >= 10
    await pool.close()


async def test_the_assets_of_a_task_are_stocked_from_the_second_time() -> None:
    inner = FakeFactory()
    pool = SandboxPool(inner, 8)
    tasks = [Path(f"/assets/{number}") for number in range(6)]
    for assets in tasks:
        await (await pool.start(Role.EXECUTION, lake=LAKE, assets=assets)).close()
    await asyncio.sleep(0.05)
    assert (pool.waiting(), len(inner.started)) == (0, 6)
    await (await pool.start(Role.EXECUTION, lake=LAKE, assets=tasks[3])).close()
    await until(lambda: pool.waiting() == 8)
    assert inner.started[7:] == 8 * [(Role.EXECUTION, LAKE, tasks[3])]
    await (await pool.start(Role.CONTROLLER)).close()
    await asyncio.sleep(0.05)
    assert pool.waiting() == 8
    assert inner.started[16:] == 4 * [(Role.CONTROLLER, None, None)], "it made room for half of them"
    await pool.close()
    assert inner.closed == len(inner.started)


async def test_more_tasks_than_places_do_not_drive_each_other_out() -> None:
    inner = FakeFactory()
    pool = SandboxPool(inner, 2)
    order = random.Random(0)
    for _ in range(60):
        assets = Path(f"/assets/{order.randrange(6)}")
        await (await pool.start(Role.EXECUTION, lake=LAKE, assets=assets)).close()
        await asyncio.sleep(0.002)
    in_vain = inner.closed - 60
    assert in_vain <= 4
    assert pool.warm >= 10
    await pool.close()


async def test_what_nobody_takes_is_destroyed_and_not_made_again() -> None:
    inner = FakeFactory()
    pool = SandboxPool(inner, 2, idle_seconds=0.2)
    await (await pool.start(Role.CONTROLLER)).close()
    await until(lambda: pool.waiting() == 2)
    await until(lambda: pool.waiting() == 0)
    await asyncio.sleep(0.2)
    assert (len(inner.started), inner.closed) == (3, 3)
    await pool.close()


class Slow(FakeFactory):
    """Starts take a while; knows how many ran at once."""

    running = 0
    most = 0

    async def start(self, role: Role, *, lake: Path | None = None, assets: Path | None = None) -> FakeSandbox:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.02)
            return await super().start(role, lake=lake, assets=assets)
        finally:
            self.running -= 1


async def test_refills_stand_back_while_an_episode_waits_for_a_start() -> None:
    inner = Slow()
    pool = SandboxPool(inner, 4)
    await (await pool.start(Role.EXECUTION)).close()
    await until(lambda: pool.waiting() == 4)
    sandboxes = await asyncio.gather(*(pool.start(Role.EXECUTION) for _ in range(10)))
    assert inner.most == 6, "a refill ran beside starts that somebody waited for"
    await until(lambda: pool.waiting() == 4)
    assert (pool.warm, pool.cold, len(inner.started)) == (4, 7, 15)
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    await pool.close()


async def test_a_refill_that_fails_is_met_by_the_next_who_asks_and_ends_nothing() -> None:
    inner = FakeFactory()
    pool = SandboxPool(inner, 2)
    await (await pool.start(Role.CONTROLLER)).close()
    inner.failures = 3
    await until(lambda: inner.failures == 2)
    with pytest.raises(SandboxLost, match="told to fail"):
        await pool.start(Role.EXECUTION)
    await until(lambda: inner.failures == 0)
    await (await pool.start(Role.EXECUTION)).close()
    await until(lambda: pool.waiting() == 2)
    await pool.close()


async def test_cancelling_who_asks_leaves_nothing() -> None:
    inner = Slow()
    pool = SandboxPool(inner, 2)
    for number in range(40):
        asking = asyncio.ensure_future(pool.start(Role.CONTROLLER))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        if number % 3 == 0:
            await asyncio.sleep(0.03)
        asking.cancel()
        for sandbox in await asyncio.gather(asking, return_exceptions=True):
            if not isinstance(sandbox, BaseException):
                await sandbox.close()
    await pool.close()
    await until(lambda: inner.closed == len(inner.started))


async def test_episodes_run_the_same_on_a_pool() -> None:
    program = (
        "def run(task, api):\n"
        "    text = api.generate([{'role': 'user', 'content': task['prompt']}])\n"
        "    api.execute('x = 1')\n"
        "    api.submit(str(api.execute('print(x)')))\n"
    )
    plain = open_or_skip("bubblewrap")
    pool = SandboxPool(open_or_skip("bubblewrap"), 4)
    assert (pool.kind, pool.identity, pool.proves) == (plain.kind, plain.identity, plain.proves)
    records: list[list[str]] = []
    for sandboxes in (plain, pool):
        broker = make_broker(ScriptedModel("a text"), sandboxes)
        seen: list[str] = []
        for number in range(4):
            record = (await broker.run(attempt(program, repetition=number))).record
            seen.append(re.sub(r'"(queue_)?seconds":[^,}]+', "", record.model_dump_json()))
            if number == 0 and sandboxes is pool:
                await until(lambda: pool.waiting() == 4)
        records.append(seen)
        await broker.close()
    assert pool.warm >= 4
    assert records[0] == records[1]


def test_a_pool_too_small_for_both_roles_is_refused() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        SandboxPool(FakeFactory(), 1)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.06, 0.2])
def test_an_event_loop_that_ends_in_the_middle_of_a_start_ends(delay: float) -> None:
    """Here every task is cancelled at once, those that clean up after others too."""
    inner = open_or_skip("bubblewrap")

    async def main() -> None:
        pool = SandboxPool(inner, 2)
        await (await pool.start(Role.CONTROLLER)).close()
        await asyncio.sleep(delay)

    asyncio.run(asyncio.wait_for(main(), 60))
    asyncio.run(inner.close())
