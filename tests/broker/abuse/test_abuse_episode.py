"""Whole episodes on real sandboxes: nothing private reaches them, and each end is what it really was."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.errors import SandboxLost
from broker.record import GradedEpisode, StopReason
from broker.sandbox.base import Role, SandboxFactory
from tests.broker.abuse.places import BACK_ENDS, Place, open_place
from tests.broker.abuse.programs import STREAMS
from tests.broker.abuse.test_abuse_execution import OUT_OF_MEMORY
from tests.fixtures.episodes import ScriptedModel, attempt, grader, make_broker, release, right_answer
from verifier.task import Task


@pytest.fixture(params=BACK_ENDS)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    grader().grade(task().id, "")  # its process lives as long as the tests, and so does the socket to it
    async with open_place(request.param) as place:
        yield place


@pytest.fixture
def factory(place: Place) -> SandboxFactory:
    return place.factory


def task() -> Task:
    return release().tasks[0]


async def episode(factory: SandboxFactory, program: str, **changes: Any) -> GradedEpisode:
    broker = make_broker(ScriptedModel(right_answer(task())), factory, retries=0, **changes)
    return await broker.run(attempt(program, task()))


ASK = 'said = api.generate([{"role": "user", "content": task["prompt"], "source": "task"}])'

SEARCH = r'''
import ctypes, os, re

PATTERN = re.compile(rb"rinr-can[a]ry-[0-9a-f]{16}")
"""Does not match its own text."""
LARGEST = 64 << 20

def search():
    """Canaries in everything that this process can read, and how many things that were."""
    found, looked = set(), 0
    def look(data):
        nonlocal looked
        looked += 1
        found.update(PATTERN.findall(data))
    def read(path):
        try:
            with open(path, "rb") as file:
                look(file.read(LARGEST))
        except OSError:
            pass
    for folder, folders, names in os.walk("/"):
        if folder == "/":
            folders[:] = [name for name in folders if name not in ("proc", "sys", "dev")]
        look(os.fsencode(folder))
        for name in names:
            look(os.fsencode(name))
            read(os.path.join(folder, name))
    for folder in ("/dev/shm", "/dev/mqueue", "/proc/sysvipc"):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            read(folder + "/" + name)
    for process in [name for name in os.listdir("/proc") if name.isdigit()] + ["self", "net"]:
        for name in ("cmdline", "environ", "mounts", "mountinfo", "maps", "comm", "cgroup", "unix", "tcp"):
            read(f"/proc/{process}/{name}")
        for part in ("cwd", "root", "exe"):
            try:
                look(os.fsencode(os.readlink(f"/proc/{process}/{part}")))
            except OSError:
                pass
    look(repr(dict(os.environ)).encode() + repr(os.uname()).encode())
    for name in os.listdir("/proc/self/fd"):
        try:
            look(os.fsencode(os.readlink(f"/proc/self/fd/{name}")))
            if int(name) > 2 and os.fstat(int(name)).st_size:
                look(os.pread(int(name), LARGEST, 0))
        except OSError:
            pass
    memory = 0
    for line in open("/proc/self/maps"):
        where, rights, *_, kind = line.split()
        start, end = (int(part, 16) for part in where.split("-"))
        if rights.startswith("rw") and kind not in ("[vvar]", "[vsyscall]"):
            for at in range(start, end, 1 << 20):
                look(ctypes.string_at(at, min(1 << 20, end - at)))
                memory += 1
    return sorted(text.decode() for text in found), looked > 1000 and memory > 5
'''
DECOY = "rinr-can" + "ary-" + "f" * 16


@pytest.mark.spec("EVID-02", "HOST-02")
async def test_no_canary_reaches_a_sandbox(factory: SandboxFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie beside each reference and in the host's environment; a decoy shows that the search finds."""
    monkeypatch.setenv("RINR_ABUSE_SECRET", "rinr-can" + "ary-" + "e" * 16)
    private = release().references_path.read_text()
    assert len(re.findall("rinr-can" + "ary-[0-9a-f]{16}", private)) == len(release().tasks)
    hide = 'open("/tmp/decoy", "w").write("rinr-can" + "ary-" + "f" * 16)\n'
    program = f"""
{SEARCH}
def run(task, api):
    {ASK}
    seen = api.execute({SEARCH + hide + "print(search())"!r})
    {hide}
    api.submit(f"program: {{search()}} tool: {{seen}}")
"""
    graded = await episode(factory, program, tool_seconds=60.0)
    assert graded.record.error is None
    assert graded.record.tool_calls[0].error == ""
    (submission,) = graded.record.submissions
    everything = f"(['{DECOY}'], True)"
    assert submission.text.startswith(f"program: {everything} tool: ")
    assert graded.record.tool_calls[0].stdout == everything + "\n"


@pytest.mark.spec("HOST-07")
async def test_confirmed_out_of_memory_ends_the_episode_with_nothing(factory: SandboxFactory) -> None:
    if "oom" not in factory.proves:
        pytest.skip("no memory group can be made here")
    program = f"def run(task, api):\n    {ASK}\n    api.execute({OUT_OF_MEMORY!r})\n    api.submit(said)"
    graded = await episode(factory, program)
    assert graded.record.stop_reason is StopReason.OUT_OF_MEMORY
    assert graded.record.submissions == ()
    assert not graded.verdict.correct


@pytest.mark.spec("HOST-07")
@pytest.mark.parametrize("role", Role)
async def test_a_sandbox_that_vanishes_is_an_error_and_no_outcome(place: Place, role: Role) -> None:
    """Process 1 is killed from the host's side; nothing may be concluded from such an episode."""
    waits = "import time; time.sleep(600)"
    body = waits if role is Role.CONTROLLER else f"api.execute({waits!r})"
    running = asyncio.ensure_future(
        episode(place.factory, f"def run(task, api):\n    {ASK}\n    {body}", tool_seconds=60.0)
    )
    for _ in range(500):
        await asyncio.sleep(0.02)
        if victims := place.busy(role):
            break
    else:
        pytest.fail("no sandbox came")
    await asyncio.sleep(0.3)
    os.kill(victims[0], signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await running


@pytest.mark.spec("HOST-02", "HOST-07")
async def test_tool_code_cannot_make_its_sandbox_vanish(factory: SandboxFactory) -> None:
    """If it could, a program would end the run of which it is measured (architecture, decision 5)."""
    attack = """
import os, resource
for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
    try: resource.prlimit(1, kind, (0, 0))
    except OSError: pass
for number in range(1, 65):
    os.kill(1, number)
os._exit(0)
"""
    calls = f"api.execute({attack!r})\n    seen = api.execute('print(6 * 7)')\n    "
    program = f"def run(task, api):\n    {ASK}\n    {calls}api.submit(said + seen['stdout'])"
    graded = await episode(factory, program)
    assert [call.stdout for call in graded.record.tool_calls] == ["", "42\n"]
    assert graded.record.stop_reason is StopReason.FIRST_ANSWER


@pytest.mark.spec("HOST-09")
async def test_state_persists_within_an_episode_and_never_across(factory: SandboxFactory) -> None:
    """Case T06 on the way: a call that closes stdout and raises costs neither state nor the next output."""
    calls = [
        "print('x' in dir(), __import__('os').listdir('/work'))",
        "x = 41; open('/work/f', 'w').write('kept')",
        "import sys; sys.stdout.close(); raise ValueError('on purpose')",
        "print(x + 1, open('/work/f').read())",
    ]
    program = (
        f"def run(task, api):\n    {ASK}\n    for code in {calls!r}: api.execute(code)\n    api.submit(said)"
    )
    broker = make_broker(ScriptedModel(right_answer(task())), factory, retries=0)
    for graded in await broker.run_all([attempt(program, task(), repetition=number) for number in range(2)]):
        assert isinstance(graded, GradedEpisode)
        first, _, closed, last = graded.record.tool_calls
        assert first.stdout == "False []\n"
        assert closed.error.endswith("ValueError: on purpose")
        assert (last.stdout, last.error) == ("42 kept\n", "")
        assert graded.verdict.correct


@pytest.mark.spec("HOST-02", "HOST-12")
async def test_case_t05_ends_normally_with_the_hosts_sampling_and_its_siblings_too(
    factory: SandboxFactory,
) -> None:
    t05 = STREAMS[0].code.replace("api.generate([])", ASK.removeprefix("said = "))
    plain = f"def run(task, api):\n    {ASK}\n    api.submit(said)"
    model = ScriptedModel(right_answer(task()))
    broker = make_broker(model, factory, retries=0)
    programs = [plain, t05, plain]
    results = await broker.run_all([attempt(code, task(), "rl", temperature=1.0) for code in programs])
    for graded in results:
        assert isinstance(graded, GradedEpisode)
        assert graded.record.stop_reason is StopReason.FIRST_ANSWER
        assert graded.verdict.correct
    fixed = [sampling.model_dump(exclude={"seed", "max_tokens"}) for sampling in model.samplings]
    off = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    assert fixed == [{"temperature": 1.0, "top_p": 1.0, "top_k": -1, **off}] * 3
