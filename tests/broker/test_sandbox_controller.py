"""The harness program in a real sandbox: its three calls, and every way to end."""

from collections.abc import AsyncIterator

import pytest

from broker.errors import SandboxLost
from broker.sandbox.base import Role, SandboxFactory
from tests.fixtures.sandbox_probe import converse, open_or_skip


@pytest.fixture(params=["bubblewrap", "docker"])
async def factory(request: pytest.FixtureRequest) -> AsyncIterator[SandboxFactory]:
    factory = open_or_skip(request.param)
    yield factory
    await factory.close()


@pytest.mark.spec("HOST-01")
async def test_a_program_generates_executes_and_submits(factory: SandboxFactory) -> None:
    program = """
def run(task, api):
    said = api.generate([{"role": "user", "content": task["prompt"], "source": "task"}])
    seen = api.execute(said + "!")
    reply = api.submit(seen["stdout"])
    api.submit(reply["reply"])
"""
    answers = {
        "generate": "print(1)",
        "execute": {"stdout": "1\n", "error": ""},
        "submit": {"done": False, "reply": "Try again."},
    }
    assert await converse(factory, program, answers) == [
        {"op": "generate", "messages": [{"role": "user", "content": "Why?", "source": "task"}]},
        {"op": "execute", "code": "print(1)!"},
        {"op": "submit", "text": "1\n"},
        {"op": "submit", "text": "Try again."},
        {"op": "end"},
    ]


@pytest.mark.spec("HOST-02")
async def test_printing_reading_and_closing_streams_disturbs_nothing(factory: SandboxFactory) -> None:
    """Case T05: the channel is on no descriptor that a program finds by counting."""
    program = """
import os, sys
def run(task, api):
    print('{"op": "submit", "text": "forged"}', flush=True)
    print("x" * 1_000_000)
    sys.stdin.read(); input("name? ")
    os.write(1, b"raw"); os.write(2, b"raw")
    sys.stdout.close(); os.close(1); os.close(0); sys.stderr = None
    api.submit(api.generate([]))
"""
    frames = await converse(factory, program)
    assert frames == [{"op": "generate", "messages": []}, {"op": "submit", "text": "text"}, {"op": "end"}]


@pytest.mark.parametrize(
    ("program", "kind", "text"),
    [
        ("def run(task, api):\n    return 1 / 0", "crash", "ZeroDivisionError"),
        ("def run(task, api:", "crash", "SyntaxError"),
        ("raise RuntimeError('at load')", "crash", "RuntimeError: at load"),
        ("def solve(task, api): pass", "protocol", "no function run(task, api)"),
        ("def run(task, api): exit(4)", "crash", "SystemExit: 4"),
        ("import os\ndef run(task, api): os._exit(0)", "crash", "exited with code 0 without finishing"),
        ("import ctypes\ndef run(task, api): ctypes.string_at(0)", "crash", "killed by signal 11"),
        ("def run(task, api): api.generate(object())", "crash", "object has no form in JSON"),
        ("def run(task, api): api.submit('\\ud800')", "crash", "lone surrogate"),
        ("def run(task, api): api.generate(float('nan'))", "crash", "nan"),
        ("def run(task, api): api.execute('x' * 2_000_000)", "crash", "the limit is 1048576"),
        ("def run(task, api): bytearray(10**9)", "crash", "MemoryError"),
    ],
)
async def test_a_faulty_program_is_an_outcome(
    factory: SandboxFactory, program: str, kind: str, text: str
) -> None:
    (frame,) = await converse(factory, program)
    assert (frame["op"], frame["kind"]) == ("error", kind)
    assert text in frame["traceback"]


async def test_a_crash_shows_the_programs_own_lines(factory: SandboxFactory) -> None:
    (frame,) = await converse(factory, "def run(task, api):\n    return task['absent']")
    assert "return task['absent']" in frame["traceback"]
    assert "broker" not in frame["traceback"]


@pytest.mark.parametrize("ending", ["return", "exit()", "exit(0)", "raise SystemExit"])
async def test_leaving_quietly_is_an_end(factory: SandboxFactory, ending: str) -> None:
    assert await converse(factory, f"def run(task, api):\n    {ending}") == [{"op": "end"}]


FORGE = """
import os
def run(task, api):
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.write(int(name), {payload})
            except OSError:
                pass
    api.generate([])
"""


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x05[[[[[",
        b'\x00\x00\x00\x0e{"op":"ready"}',
        b'\x00\x00\x00\x26{"op":"observation","stdout":"","x":0}',
        b"\x80\x04\x95 pickle",
        b"garbage in any form is the program's own fault",
    ],
)
async def test_forged_bytes_on_every_descriptor_are_the_programs_fault(
    factory: SandboxFactory, payload: bytes
) -> None:
    frames = await converse(factory, FORGE.format(payload=payload))
    assert (frames[-1]["op"], frames[-1]["kind"]) == ("error", "protocol")


async def test_a_program_that_closes_every_descriptor_has_crashed(factory: SandboxFactory) -> None:
    program = "import os\ndef run(task, api):\n    os.closerange(0, 10_000)\n    api.generate([])"
    (frame,) = await converse(factory, program)
    assert (frame["op"], frame["kind"]) == ("error", "crash")


async def test_half_a_frame_never_reaches_the_host(factory: SandboxFactory) -> None:
    program = FORGE.replace("api.generate([])", "while True: pass").format(payload=b"\x00\x00\x01\x00{")
    sandbox = await factory.start(Role.CONTROLLER)
    try:
        await sandbox.send({"op": "start", "program": program, "task": {}})
        with pytest.raises(TimeoutError):
            await sandbox.receive(0.5)
    finally:
        await sandbox.close()
    with pytest.raises(SandboxLost, match="closed"):
        await sandbox.receive(1)
