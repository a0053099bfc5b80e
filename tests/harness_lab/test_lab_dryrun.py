"""The dry run compares what programs send, in a sandbox, against a scripted api."""

import pytest

from broker.budgets import Budgets
from broker.guidance import host_guidance, program_task
from broker.harness import Harness
from broker.sandbox.base import Role
from harness_lab.check import check_program
from harness_lab.dryrun import DryRun, dry_run, new_text, unchanged
from harness_lab.improver.assemble import Trait, assemble
from harness_lab.seed import seed_harness
from tests.fixtures.episodes import a_task, release
from tests.fixtures.fake_sandbox import FakeFactory

SEED = """
TEXT = "Answer briefly."

def run(task, api):
    while True:
        text = api.generate([
            {"role": "system", "content": task.get("system", TEXT)},
            {"role": "user", "content": task["prompt"]},
        ])
        api.submit(text)
"""


async def traced(code: str, factory: FakeFactory | None = None) -> DryRun:
    inventory = release().inventory()
    guidance = host_guidance(inventory)
    tasks = [
        program_task(a_task(form), Budgets(), guidance, inventory, user_turns=1)
        for form in ("symbol", "letter")
    ]
    return await dry_run(factory or FakeFactory(), Harness(code=code), tasks)


@pytest.mark.spec("PROP-07", "SEL-02")
async def test_case_t01_a_dead_default_alone_is_unchanged_and_with_one_live_change_it_passes() -> None:
    parent = await traced(SEED)
    dead = SEED.replace("Answer briefly.", "Think first, then answer with one letter only.")
    assert unchanged(parent, await traced(dead))
    live = dead.replace('task["prompt"]}', 'task["prompt"] + " Think."}')
    assert not unchanged(parent, await traced(live))


@pytest.mark.spec("PROP-07")
async def test_case_t02_text_of_an_annotated_constant_is_listed_as_reaching_the_model() -> None:
    code = SEED.replace('TEXT = "Answer briefly."', 'RULES: str = "Read the row."').replace(
        'task.get("system", TEXT)', 'task["system"] + RULES'
    )
    assert not check_program(code, SEED).errors
    parent, candidate = await traced(SEED), await traced(code)
    assert not unchanged(parent, candidate)
    assert [text[-13:] for text in new_text(parent, candidate)] == ["Read the row."]


async def test_only_the_controller_sandbox_is_used_and_every_one_is_closed() -> None:
    factory = FakeFactory()
    await traced(seed_harness().code, factory)
    assert {(role, lake) for role, lake, _ in factory.started} == {(Role.CONTROLLER, None)}
    assert factory.closed == len(factory.started)


async def test_a_crash_and_an_endless_caller_are_events() -> None:
    crash = await traced("def run(task, api):\n    raise KeyError('x')\n")
    assert any(event["op"] == "error" for event in crash.events)
    endless = await traced("def run(task, api):\n    while True:\n        api.execute('1')\n")
    assert len(endless.events) < 200


@pytest.mark.spec("PROP-07")
async def test_each_trait_changes_what_is_sent() -> None:
    base = {Trait.EXAMPLES, Trait.LOOK_UP}
    parent = await traced(assemble(base))
    for trait in set(Trait) - base:
        assert not unchanged(parent, await traced(assemble(base | {trait}))), trait
