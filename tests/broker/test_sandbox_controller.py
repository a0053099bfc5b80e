"""The harness program in a real sandbox: its three calls, and how it ends. Hostile ones: `abuse`."""

from collections.abc import AsyncIterator

import pytest

from broker.sandbox.base import SandboxFactory
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


@pytest.mark.parametrize(
    ("program", "kind", "text"),
    [
        ("def run(task, api):\n    return 1 / 0", "crash", "ZeroDivisionError"),
        ("def run(task, api:", "crash", "SyntaxError"),
        ("raise RuntimeError('at load')", "crash", "RuntimeError: at load"),
        ("def solve(task, api): pass", "protocol", "no function run(task, api)"),
        ("def run(task, api): api.submit('\\ud800')", "crash", "lone surrogate"),
        ("def run(task, api): api.generate(float('nan'))", "crash", "nan"),
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
