"""Every trick of a hostile harness program, on both back ends: what the host hears, and what stays."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from broker.errors import SandboxLost
from broker.sandbox.base import Role, Sandbox
from broker.sandbox.channel import ChannelSandbox
from tests.broker.abuse.cases import frame
from tests.broker.abuse.places import BACK_ENDS, Place, open_place, settle
from tests.broker.abuse.programs import ASKED, PROGRAMS, Program, forging, run
from tests.fixtures.sandbox_probe import execute

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("HOST-01", "HOST-02", "HOST-12")]
ANSWER = "text"


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=BACK_ENDS)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with open_place(request.param) as place:
        yield place


async def heard(sandbox: Sandbox, program: str, patience: float) -> list[dict[str, Any]]:
    """All frames of a program to its last one, or to silence; every request is answered."""
    frames: list[dict[str, Any]] = []
    await sandbox.send({"op": "start", "program": program, "task": {"prompt": "Why?"}})
    while not frames or frames[-1]["op"] not in ("end", "error"):
        try:
            frames.append(await sandbox.receive(patience))
        except TimeoutError:
            break
        if frames[-1]["op"] not in ("end", "error"):
            await sandbox.send({"op": "result", "value": ANSWER})
    return frames


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_a_hostile_program_has_its_outcome_and_leaves_nothing(place: Place, program: Program) -> None:
    async with place.sandbox(Role.CONTROLLER) as (sandbox, namespace):
        silent = program.last == "silence"
        frames = await heard(sandbox, program.code, 0.7 if silent else 30)
        if silent:
            assert frames == program.before
            assert await sandbox.responds(), "process 1 is unharmed"
            return
        assert frames[:-1] == program.before
        if program.last == "end":
            assert frames[-1] == {"op": "end"}
        else:
            kind, pattern = program.last
            assert (frames[-1]["op"], frames[-1]["kind"]) == ("error", kind)
            assert re.search(pattern, frames[-1]["traceback"]), frames[-1]["traceback"]
        await settle(namespace, 1)  # process 1 alone; nothing of the program


async def test_the_list_is_long(place: Place) -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) > 50


async def test_a_program_that_never_reads_its_answers_goes_with_its_host(place: Place) -> None:
    """Process 1 is in the middle of handing on an answer when the host's end of the channel closes."""
    program = forging(frame(b'{"op":"generate","messages":[]}'), then="time.sleep(600)")
    async with place.sandbox(Role.CONTROLLER) as (sandbox, namespace):
        await sandbox.send({"op": "start", "program": program, "task": {}})
        assert await sandbox.receive(30) == ASKED
        await sandbox.send({"op": "result", "value": "x" * 500_000})
        await asyncio.sleep(0.2)
        assert isinstance(sandbox, ChannelSandbox)
        assert sandbox._channel is not None
        sandbox._channel.close()
        await settle(namespace, 0)


async def test_a_closed_sandbox_is_lost_for_whoever_waits_for_it(place: Place) -> None:
    async with place.sandbox(Role.CONTROLLER) as (sandbox, _):
        await sandbox.send({"op": "start", "program": run("time.sleep(600)"), "task": {}})
        waiting = asyncio.ensure_future(sandbox.receive(30))
        await asyncio.sleep(0.1)
        await sandbox.close()
        with pytest.raises(SandboxLost, match="closed"):
            await waiting


async def test_siblings_of_a_hostile_program_are_untouched(place: Place) -> None:
    """While one bombs, one floods and one stops itself, others work as ever."""
    hostile = [p for p in PROGRAMS if p.name in ("fork bomb, endless", "endless output", "SIGSTOP self")]

    async def attack(program: Program) -> None:
        sandbox, namespace = await place.start(Role.CONTROLLER)
        await sandbox.send({"op": "start", "program": program.code, "task": {}})
        attackers.append((sandbox, namespace))

    attackers: list[tuple[Sandbox, str]] = []
    try:
        for program in hostile:
            await attack(program)
        async with (
            place.sandbox(Role.CONTROLLER) as (controller, _),
            place.sandbox(Role.EXECUTION) as (execution, _),
        ):
            frames = await heard(controller, run("api.submit(api.generate([]))"), 30)
            assert frames == [ASKED, {"op": "submit", "text": "text"}, {"op": "end"}]
            assert (await execute(execution, "print(1)"))["stdout"] == "1\n"
    finally:
        for sandbox, namespace in attackers:
            await place.end(sandbox, namespace)
