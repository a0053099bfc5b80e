"""One episode's death never touches its siblings: real crashes of real sandboxes in the middle of a batch."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.broker import Lost
from broker.model import Completion, Sampling
from broker.record import GradedEpisode
from broker.sandbox.base import SandboxFactory
from tests.broker.test_program_contract import REACT, children, solver
from tests.fixtures.episodes import ScriptedModel, a_task, attempt, make_broker, template
from tests.fixtures.sandboxes import real_sandboxes

ASK = 'api.generate([{"role": "user", "content": task["prompt"]}])'
DEATHS = {
    "killed": "import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "import os\n    os.abort()",
    "out of bounds": "import ctypes\n    ctypes.string_at(8)",
    "out of stack": "exec('f = lambda n: f(n + 1)\\nf(0)')",
    "out of memory": "held = [bytearray(1 << 24) for _ in range(200)]",
    "all its processes": "import os, signal\n    os.kill(-1, signal.SIGKILL)",
}
VICTIM = """
def run(task, api):
    asked = [{"role": "system", "content": "SHOOT"}, {"role": "user", "content": task["prompt"]}]
    api.submit(api.generate(asked))
"""


@pytest.fixture
async def sandboxes() -> AsyncIterator[SandboxFactory]:
    factory = real_sandboxes()
    yield factory
    await factory.close()


@pytest.mark.spec("SEL-08", "HOST-07")
async def test_programs_that_die_of_themselves_are_crashes_and_their_siblings_finish(
    sandboxes: SandboxFactory,
) -> None:
    deaths = [
        f"def run(task, api):\n    {ASK}\n    {death}\n    api.submit('alive')\n" for death in DEATHS.values()
    ]
    codes = [code for death in deaths for code in (death, REACT)]
    broker = make_broker(ScriptedModel(policy=solver), sandboxes, limit=6)
    results = await broker.run_all([attempt(code, a_task("symbol")) for code in codes], masked_ok=True)
    graded = [result for result in results if isinstance(result, GradedEpisode)]
    assert len(graded) == len(codes), "no crash of a program is a loss of ours"
    for name, dead, sibling in zip(DEATHS, graded[::2], graded[1::2], strict=True):
        assert dead.record.error is not None, name
        assert dead.record.error.kind == "crash", name
        assert len(dead.record.model_calls) == 1, name
        assert (sibling.record.stop_reason, sibling.record.error) == ("first_answer", None), name
        assert sibling.verdict.correct, name


class Shooting(ScriptedModel):
    """Kills the sandbox of the episode that asks for it, from outside, while it waits for its answer."""

    def __init__(self) -> None:
        super().__init__(policy=solver)
        self.before = children()
        self.shots = 1
        self.victims: set[int] = set()
        self.siblings_run = asyncio.Event()

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        if self.shots and "SHOOT" in template().decode(prompt_ids):
            self.shots -= 1
            self.victims = children() - self.before
            self.siblings_run.set()
            await asyncio.sleep(0.3)  # the siblings are under way by now
            for pid in self.victims:
                with contextlib.suppress(ProcessLookupError):  # it died with the one before it
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.3)  # what is inside dies a moment later
        else:
            await asyncio.sleep(0.2)
        return await super().complete(prompt_ids, sampling)


@pytest.mark.spec("HOST-07")
async def test_a_sandbox_that_is_killed_from_outside_is_lost_and_its_siblings_finish(
    sandboxes: SandboxFactory,
) -> None:
    model = Shooting()
    broker = make_broker(model, sandboxes, limit=6, retries=0)
    victim = asyncio.ensure_future(broker.run_all([attempt(VICTIM, a_task("symbol"))], masked_ok=True))
    await asyncio.wait_for(model.siblings_run.wait(), 60)
    siblings: list[Any] = await broker.run_all([attempt(REACT, a_task("symbol")) for _ in range(4)])
    [lost] = await victim
    assert isinstance(lost, Lost)
    assert lost.error.startswith("SandboxLost")
    assert [s.record.stop_reason for s in siblings] == ["first_answer"] * 4
    assert all(s.verdict.correct and not s.record.notes.get("retries") for s in siblings)
    assert not model.victims & children()


@pytest.mark.spec("HOST-07")
async def test_a_lost_sandbox_is_tried_again_and_the_record_says_so(sandboxes: SandboxFactory) -> None:
    broker = make_broker(Shooting(), sandboxes, retries=1)
    graded = await broker.run(attempt(VICTIM, a_task("symbol")))
    assert graded.record.error is None
    assert [text.partition(":")[0] for text in graded.record.notes["retries"]] == ["SandboxLost"]
