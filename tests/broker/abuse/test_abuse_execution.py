"""Every entry of the abuse list, as tool code, on both back ends: its outcome, the next call, what stays."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from broker.sandbox.base import Role, Sandbox
from broker.sandbox.protocol import ProtocolError
from tests.broker.abuse.cases import CASES, LOST, Case, Text, answers, attempts
from tests.broker.abuse.places import BACK_ENDS, Kind, Place, open_place, processes_in, settle
from tests.fixtures.sandbox_probe import execute

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("HOST-02", "HOST-07", "HOST-09")]


class Shared:
    """One sandbox for many cases; a test that fails in it takes it along."""

    def __init__(self, place: Place, lake: Path) -> None:
        self.place = place
        self._lake = lake
        self._sandbox: Sandbox | None = None
        self.namespace = ""

    async def sandbox(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox, self.namespace = await self.place.start(Role.EXECUTION, lake=self._lake)
        return self._sandbox

    async def close(self) -> None:
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await self.place.end(sandbox, self.namespace)


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=BACK_ENDS)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with open_place(request.param) as place:
        yield place


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(place: Place, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    folder = tmp_path_factory.mktemp("abuse")
    (folder / "secret").write_text("private")
    lake = folder / "lake"
    lake.mkdir()
    (lake / "table.tsv").write_text("a\tb\n")
    (lake / "out").symlink_to(folder / "secret")
    for path in (lake, lake / "table.tsv"):  # so that nothing but the mount protects them
        path.chmod(0o777)
    shared = Shared(place, lake)
    try:
        yield shared
    finally:
        await shared.close()
    assert (lake / "table.tsv").read_text() == "a\tb\n"
    assert sorted(path.name for path in lake.iterdir()) == ["out", "table.tsv"]


def text(expected: Text, kind: Kind) -> str:
    return expected if isinstance(expected, str) else expected[kind == "docker"]


NEXT = "import sys\nsys.stdout.write(str(globals().get('kept', 'gone')))"
TIDY = """
import os
for folder in ("/work", "/tmp", "/dev/shm"):
    for name in os.listdir(folder):
        os.remove(folder + "/" + name)
globals().clear()
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_hostile_code_has_its_outcome_and_the_next_call_works(shared: Shared, case: Case) -> None:
    sandbox, kind = await shared.sandbox(), shared.place.kind
    try:
        await execute(sandbox, "kept = 7")
        seen = await execute(sandbox, case.code, case.seconds)
        assert re.fullmatch(text(case.stdout, kind), seen["stdout"], re.DOTALL), seen["stdout"][-1000:]
        error = text(case.error, kind) or r"\A\Z"
        assert re.search(error, seen["error"], re.DOTALL), seen["error"][-1000:]
        ending = (seen["worker_lost"], seen["timed_out"], seen["output_truncated"])
        assert ending == (case.lost, case.timed_out, case.truncated)
        await asyncio.sleep(case.idle)

        after = await execute(sandbox, NEXT)
        assert after["stdout"] == ("gone" if case.lost or case.dies_later else "7")
        assert re.fullmatch(LOST % ".*" if case.dies_later else "", after["error"])
        assert after["worker_lost"] == case.dies_later

        await execute(sandbox, case.tidy)
        if case.stays:
            assert (await execute(sandbox, "import os; os._exit(0)"))["worker_lost"]
        assert (await execute(sandbox, TIDY))["error"] == ""
        await settle(shared.namespace, 2)  # process 1 and the worker
        assert not sandbox.oom_killed()
    except BaseException:
        await shared.close()
        raise


async def test_the_list_is_long(shared: Shared) -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 100


async def test_no_address_of_the_host_is_reached(shared: Shared) -> None:
    sandbox = await shared.sandbox()
    abstract = f"\0rinr-abuse-{id(shared)}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(abstract)
        local.listen()
        port = server.getsockname()[1]
        code = attempts(
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)",
            f"import socket; socket.socket(socket.AF_UNIX).connect({abstract!r})",
        )
        seen = await execute(sandbox, code)
    assert seen["stdout"] == answers("ECONNREFUSED", "ECONNREFUSED")


async def test_source_that_fits_in_no_frame_is_not_sent(shared: Shared) -> None:
    sandbox = await shared.sandbox()
    with pytest.raises(ProtocolError, match="the limit is 1048576"):
        await execute(sandbox, "#" * 3_000_000)
    assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"


async def test_another_sandbox_is_not_there(place: Place) -> None:
    """Neither its files, nor its processes, nor its local sockets, nor its shared memory."""
    async with place.sandbox(Role.EXECUTION) as (one, here), place.sandbox(Role.EXECUTION) as (two, _):
        hide = """
import os, socket
for folder in ("/work", "/tmp", "/dev/shm"):
    open(folder + "/mine", "w").write("secret")
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0mine")
listener.listen()
"""
        assert (await execute(one, hide))["error"] == ""
        paths = [f"open('{folder}/mine')" for folder in ("/work", "/tmp", "/dev/shm")]
        outside = [f"import os; os.kill({pid}, 9)" for pid in processes_in(here) if pid > 100]
        code = attempts(*paths, "import socket; socket.socket(socket.AF_UNIX).connect('\\0mine')", *outside)
        seen = await execute(two, code)
        refused = answers(*["ENOENT"] * 3, "ECONNREFUSED", *["ESRCH"] * len(outside))
        assert (seen["stdout"], len(outside)) == (refused, 2)
        assert (await execute(one, "print(open('/work/mine').read())"))["stdout"] == "secret\n"


OUT_OF_MEMORY = """
import os, time
children = []
for _ in range(4):
    if (child := os.fork()) == 0:
        x = bytearray(120 << 20)
        time.sleep(1)
        os._exit(0)
    children.append(child)
print(9 in [os.waitpid(child, 0)[1] for child in children])
"""


async def test_running_out_of_memory_is_confirmed_and_the_next_call_works(place: Place) -> None:
    """Four processes, each within its own limit; other sandboxes are not accused."""
    if "oom" not in place.factory.proves:
        pytest.skip("no memory group can be made here")
    async with place.sandbox(Role.EXECUTION) as (quiet, _), place.sandbox(Role.EXECUTION) as (sandbox, _):
        assert (await execute(sandbox, OUT_OF_MEMORY))["stdout"] == "True\n"
        assert sandbox.oom_killed()
        assert not quiet.oom_killed()
        assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"
    assert sandbox.oom_killed(), "still known after the end"


async def test_a_bomb_of_files_is_contained(place: Place) -> None:
    """Docker limits their number. Under bubblewrap the memory group does, which ends an episode."""
    bomb = "import os\nfor n in range(2_000_000): os.close(os.open(f'/work/{n}', os.O_CREAT))"
    counted = place.kind == "docker"
    if not counted and "oom" not in place.factory.proves:
        pytest.skip("no memory group can be made here")
    async with place.sandbox(Role.EXECUTION) as (sandbox, _):
        seen = await execute(sandbox, bomb, 60)
        assert ("No space left on device" if counted else LOST % "was killed by signal 9") in seen["error"]
        assert sandbox.oom_killed() == (not counted)
        if counted:
            assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"
