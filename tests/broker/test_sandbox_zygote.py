"""Sandboxes that a zygote bears are as closed as those that bubblewrap starts by themselves."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from broker.sandbox.base import Role
from broker.sandbox.bubblewrap import BubblewrapFactory
from tests.fixtures.leftovers import inside, zygote_of
from tests.fixtures.sandbox_look import LOOK
from tests.fixtures.sandbox_probe import converse, execute
from tests.fixtures.zygotes import MARK, a_factory, as_root, bearing, printed

__all__ = ["bearing"]

# --- As closed as a sandbox of its own ---------------------------------------------------------------------


@pytest.mark.spec("HOST-02")
@pytest.mark.parametrize("role", Role)
async def test_what_a_zygote_bears_is_what_bubblewrap_starts(
    role: Role, bearing: BubblewrapFactory, tmp_path: Path
) -> None:
    """Rights, mounts, limits, owners of files, network: all that code inside can look at."""
    alone = await a_factory(zygotes=False)
    program = f"{LOOK}\ndef run(task, api):\n    api.submit(text)"
    seen: list[dict[str, Any]] = []
    for each in (alone, bearing):
        if role is Role.EXECUTION:
            sandbox = await each.start(role, lake=tmp_path)
            text = await printed(sandbox, f"{LOOK}\nprint(text)")
            await sandbox.close()
        else:
            text = (await converse(each, program))[0]["text"]
        seen.append(json.loads(text))
        # Here the folder of terminals belongs to nobody, there to the user; in neither can he write to it.
        terminals = seen[-1]["folders"]["/dev"]["pts"]
        terminals[1:3] = [terminals[0] == "0o40755"] * 2
    await alone.close()
    assert bearing.nursery.fault == "", "it was born"
    for what in seen[0]:
        assert seen[0][what] == seen[1][what], what
    for status in seen[1]["status"]:
        assert (status["CapBnd"], status["CapEff"], status["Seccomp"]) == (["0" * 16], ["0" * 16], ["2"])
    assert set(seen[1]["files of process 1"].values()) != {"open"}


@as_root
async def test_process_1_holds_the_same_rights_and_files_either_way(
    bearing: BubblewrapFactory, tmp_path: Path
) -> None:
    """What code inside cannot see: as the host sees it."""
    alone = await a_factory(zygotes=False)
    seen: list[Any] = []
    for each in (alone, bearing):
        for role in Role:
            sandbox = await each.start(role)
            await sandbox.responds()
            (pid,) = inside(MARK, role)
            folder = Path(f"/proc/{pid}")
            links = [str(link.readlink()).split(":")[0] for link in (folder / "fd").iterdir()]
            status = [
                line
                for line in (folder / "status").read_text().splitlines()
                if line.startswith(("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "Sig"))
            ]
            environment = (folder / "environ").read_bytes()
            groups = [line.replace(str(folder.name), "") for line in (folder / "cgroup").read_text().split()]
            seen.append(
                [
                    role,
                    sorted(link.replace(str(pid), "") for link in links),
                    status,
                    sorted(environment.split(b"\0")),
                    ["rinr-" in group for group in groups],
                ]
            )
            await sandbox.close()
    await alone.close()
    for started, born in zip(seen[:2], seen[2:], strict=True):
        assert started == born


@as_root
async def test_siblings_share_no_name_space_with_each_other_nor_with_their_zygote(
    bearing: BubblewrapFactory,
) -> None:
    sandboxes = [await bearing.start(Role.EXECUTION) for _ in range(2)]
    pids = [*inside(MARK, Role.EXECUTION), zygote_of(MARK, Role.EXECUTION), os.getpid()]
    assert len(pids) == 4
    for kind in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts"):
        seen = {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for pid in pids}
        assert len(seen) == 4 - (kind == "cgroup" and not bearing.proves), kind
    groups = [Path(f"/proc/{pid}/cgroup").read_text() for pid in pids[:3]]
    assert len(set(groups)) == (3 if bearing.proves else 1), "groups of their own"
    for sandbox in sandboxes:
        await sandbox.close()


@pytest.mark.spec("HOST-02", "HOST-09")
async def test_siblings_cannot_reach_each_other(bearing: BubblewrapFactory) -> None:
    first, second = [await bearing.start(Role.EXECUTION) for _ in range(2)]
    leave = """
import ctypes, os, socket
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0meet"); abstract.listen()
named = socket.socket(socket.AF_UNIX); named.bind("/work/meet"); named.listen()
tcp = socket.create_server(("127.0.0.1", 4321))
tcp6 = socket.create_server(("::1", 4321), family=socket.AF_INET6)
library = ctypes.CDLL(None, use_errno=True)
print(library.mq_open(b"/meet", os.O_CREAT | os.O_RDWR, 0o666, None) >= 0)
for folder in ("/work", "/tmp", "/dev/shm"): open(f"{folder}/left", "w").write("x")
terminal = os.open("/dev/ptmx", os.O_RDWR)
print(os.listdir("/dev/pts"), os.getpid())
"""
    assert "'0'" in await printed(first, leave)
    reach = """
import ctypes, os, socket
def tried(call):
    try: call(); return "reached"
    except OSError as error: return type(error).__name__
def connect(family, address): socket.socket(family).connect(address)
library = ctypes.CDLL(None, use_errno=True)
print([tried(lambda: connect(*where)) for where in (
    (socket.AF_UNIX, "\\0meet"), (socket.AF_UNIX, "/work/meet"),
    (socket.AF_INET, ("127.0.0.1", 4321)), (socket.AF_INET6, ("::1", 4321)),
)])
folders = ("/work", "/tmp", "/dev/shm", "/dev/pts")
print(library.mq_open(b"/meet", os.O_RDWR), [os.listdir(folder) for folder in folders])
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()))
answers = {number: tried(lambda: os.kill(number, 0)) for number in range(3, 4000)}
print([number for number, answer in answers.items() if answer != "ProcessLookupError"])
print(library.ptrace(16, 1, 0, 0), ctypes.get_errno())
"""
    refused, shared, processes, signalled, traced = (await printed(second, reach)).splitlines()
    assert "reached" not in refused
    assert shared == "-1 [[], [], [], ['ptmx']]"
    assert (processes, signalled, traced) == ("[1, 2]", "[]", "-1 1")
    devices = (
        "import os\nprint([os.stat(f).st_dev for f in ('/work', '/tmp', '/dev/shm', '/dev/pts', '/proc')])"
    )
    seen = [json.loads(await printed(sandbox, devices)) for sandbox in (first, second)]
    assert not set(seen[0]) & set(seen[1]), "file systems of their own"
    await first.close()
    await second.close()


async def test_siblings_draw_different_random_numbers_and_hash_alike(bearing: BubblewrapFactory) -> None:
    code = "import sys\nprint('random' in sys.modules, 'numpy' in sys.modules)\n"
    code += "import os, random, tempfile, uuid, secrets\nimport numpy as np\n"
    code += "print(os.urandom(8).hex(), random.random(), uuid.uuid4(), uuid.uuid1(), secrets.token_hex(8),"
    code += " tempfile.mktemp(), np.random.random(), np.random.default_rng().random(), sep='\\n')\n"
    code += "print(hash('text'))"
    seen: list[list[str]] = []
    for _ in range(2):
        sandbox = await bearing.start(Role.EXECUTION)
        seen.append((await printed(sandbox, code)).splitlines())
        await sandbox.close()
    assert seen[0][0] == seen[1][0] == "False False", "nothing with a state of its own is loaded beforehand"
    assert all(one != other for one, other in zip(seen[0][1:-1], seen[1][1:-1], strict=True)), seen
    assert seen[0][-1] == seen[1][-1], "the hash seed is fixed for all"


# --- What a zygote holds -----------------------------------------------------------------------------------


def memory_holds(pid: int, wanted: bytes) -> bool:
    """Whether the text stands anywhere in the writable memory of a process."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if "rw" in rights:
                memory.seek(start)
                if wanted in memory.read(end - start):
                    return True
    return False


@as_root
@pytest.mark.spec("EVID-02")
async def test_a_zygote_holds_nothing_of_what_its_children_were_given(bearing: BubblewrapFactory) -> None:
    sandbox = await bearing.start(Role.EXECUTION)
    await execute(sandbox, "kept = 'canary ' + 'of one episode'\nprint(kept)")
    zygote = zygote_of(MARK, Role.EXECUTION)
    (process_1,) = inside(MARK, Role.EXECUTION)
    assert memory_holds(process_1, b"of one episode"), "the search finds it where it is"
    assert not memory_holds(zygote, b"of one episode")
    later = await bearing.start(Role.EXECUTION)
    (born_later,) = set(inside(MARK, Role.EXECUTION)) - {process_1}
    assert not memory_holds(born_later, b"of one episode")
    await later.close()
    await sandbox.close()


@as_root
async def test_a_zygote_does_not_grow_with_its_children(bearing: BubblewrapFactory) -> None:
    for role in Role:
        await (await bearing.start(role)).close()
    zygotes = {role: zygote_of(MARK, role) for role in Role}

    def sizes() -> dict[Role, tuple[int, int]]:
        found: dict[Role, tuple[int, int]] = {}
        for role, pid in zygotes.items():
            memory = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            found[role] = (len(list(Path(f"/proc/{pid}/fd").iterdir())), memory)
        return found

    before = sizes()
    for _ in range(30):
        for role in Role:
            await (await bearing.start(role)).close()
    assert {role: zygote_of(MARK, role) for role in Role} == zygotes, "one zygote served them all"
    after = sizes()
    for role in Role:
        assert after[role][0] == before[role][0], "files"
        assert after[role][1] <= before[role][1] + 64, "pages"
        children = Path(f"/proc/{zygotes[role]}/task/{zygotes[role]}/children").read_text()
        assert children == "", "the dead are collected"
