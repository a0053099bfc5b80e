"""The dry run compares what programs send, in a sandbox, against a scripted api."""

import time

import pytest

from broker.budgets import Budgets
from broker.guidance import host_guidance, program_task
from broker.harness import Harness
from broker.sandbox.base import Role, SandboxFactory
from harness_lab.change import change_report
from harness_lab.check import check_program
from harness_lab.dry_scripts import MORE_SCRIPTS, SCRIPTS
from harness_lab.dryrun import DryLimits, DryRun, dry_run, new_text, unchanged
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
    budgets = {"model_calls": 4, "tool_calls": 3, "context_tokens": 900, "tool_response_tokens": 200}
    parent = await wide(assemble(base), **budgets)
    for trait in set(Trait) - base:
        assert not unchanged(parent, await wide(assemble(base | {trait}), **budgets)), trait


@pytest.mark.spec("PROP-07")
async def test_case_t02_the_change_report_lists_the_text_as_reaching_the_model() -> None:
    code = SEED.replace('TEXT = "Answer briefly."', 'RULES: str = "Read the row."\nUNUSED = "Never sent."')
    code = code.replace('task.get("system", TEXT)', 'task["system"] + RULES')
    found = change_report(code, SEED, parent := await traced(SEED), candidate := await traced(code),
                          unchanged=unchanged(parent, candidate))  # fmt: skip
    assert [(item.line, item.text, item.reaches_model) for item in found.texts] == [
        (2, "Read the row.", True),
        (3, "Never sent.", False),
    ]
    assert any(line.endswith("Read the row.") for line in found.new_lines)
    assert len(found.lost_lines) == 1
    assert found.first_difference == "scripted episode 1, event 1: generate"
    assert found.calls["generate"][0] == found.calls["generate"][1] > 0


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    "change",
    [
        'if api.left["model_calls"] == 1:\n            api.execute("1")',
        "if api.notice:\n            api.execute('1')",
        'if api.left["context_tokens"] < task["budgets"]["context_tokens"]:\n            api.execute("1")',
    ],
)
async def test_a_change_that_depends_on_what_is_left_is_seen(change: str) -> None:
    parent = SEED.replace("api.submit(text)", "api.submit(api.generate([]))")
    candidate = parent.replace("        api.submit", f"        {change}\n        api.submit")
    runs = [await wide(code, model_calls=2) for code in (parent, candidate)]
    assert not unchanged(*runs)


async def wide(code: str, **budgets: int) -> DryRun:
    inventory = release().inventory()
    tasks = [
        program_task(a_task(form), Budgets(**budgets), host_guidance(inventory), inventory, user_turns=1)
        for form in ("symbol", "letter")
    ]
    return await dry_run(FakeFactory(), Harness(code=code), tasks, (*SCRIPTS, *MORE_SCRIPTS))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("and not answer_only", "and True"),
        ("FINAL_NOTE = ", "FINAL_NOTE = 'Now. ' + "),
        ("ONE_BLOCK_NOTE = ", "ONE_BLOCK_NOTE = 'One. ' + "),
        ("Observation: {seen}", "Observation: {seen['stdout'][:300]}"),
        ("api.submit(text)", "api.submit(text.split('Answer:')[-1])"),
        ('text.count("<execute>") == 1 and ', ""),
    ],
)
async def test_all_scripts_together_see_changes_in_every_branch_of_the_seed(old: str, new: str) -> None:
    code = seed_harness().code
    assert old in code
    parent, candidate = [
        await wide(text, model_calls=4, tool_calls=2) for text in (code, code.replace(old, new))
    ]
    assert not unchanged(parent, candidate)


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    ("old", "new"), [("blocks[0]", "blocks[-1]"), ("len(blocks) == 1", "len(blocks) > 0"), ("calls", "turns")]
)
async def test_live_code_that_was_rewritten_to_the_same_effect_is_unchanged(old: str, new: str) -> None:
    code = seed_harness().code
    rewritten = (
        code.replace(old, new).replace("model_turns", "model_calls").replace("tool_turns", "tool_calls")
    )
    assert rewritten != code
    assert unchanged(await wide(code, model_calls=4), await wide(rewritten, model_calls=4))


async def test_what_the_program_sends_is_kept_within_bounds() -> None:
    code = SEED.replace('task["prompt"]', '"x" * 100_000 + str(len(task))')
    found = await traced(code)
    assert all(len(str(event)) < 40_000 for event in found.events)
    assert sum(map(len, found.sent_text)) <= DryLimits().characters
    other = await traced(code.replace('"x"', '"y"'))
    assert not unchanged(found, other)
    huge = await traced(code.replace("100_000", "800_000").replace("str(len(task))", "task['prompt']"))
    assert huge.cut == "characters"


HOSTILE: dict[str, str] = {
    "an endless loop": "    while True:\n        pass\n",
    "a sleep": "    import time\n    time.sleep(10_000)\n",
    "huge output": "    while True:\n        print('x' * 1_000_000)\n",
    "many processes": "    import os\n    for _ in range(10_000):\n        try:\n            os.fork()\n"
    "        except OSError:\n            pass\n    while True:\n        pass\n",
    "much memory": "    held = []\n    while True:\n        held.append(bytearray(1 << 24))\n",
    "a full disk": "    f = open('/tmp/f', 'wb')\n    while True:\n        f.write(b'0' * 65536)\n",
    "endless calls": "    while True:\n        api.execute('1')\n",
    "a huge message": "    api.generate([{'role': 'user', 'content': 'x' * (1 << 26)}])\n",
    "deep messages": "    m = []\n    for _ in range(10_000):\n        m = [m]\n    api.generate(m)\n",
    "its own end": "    import os\n    os._exit(1)\n",
    "a kill of everything": "    import os, signal\n    os.kill(-1, signal.SIGKILL)\n",
    "closed descriptors": "    import os\n    os.closerange(0, 256)\n    api.generate([])\n",
    "a forged frame": "    import os\n    os.write(1, b'\\xff' * 4096)\n    api.submit('x')\n",
}


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize("kind", sorted(HOSTILE))
async def test_a_hostile_program_ends_within_the_limits_of_the_dry_run(
    kind: str, sandboxes: SandboxFactory
) -> None:
    inventory = release().inventory()
    task = program_task(a_task(), Budgets(), host_guidance(inventory), inventory, user_turns=1)
    limits = DryLimits(call_seconds=3, total_seconds=8)
    started = time.monotonic()
    code = f"def run(task, api):\n{HOSTILE[kind]}"
    found = await dry_run(sandboxes, Harness(code=code), [task], limits=limits)
    assert time.monotonic() - started < 60
    assert {event["op"] for event in found.events} <= {
        "generate", "execute", "submit", "end", "error", "timeout", "next", "left out",
    }  # fmt: skip
    good = await dry_run(sandboxes, Harness(code=SEED), [task])
    assert [event["op"] for event in good.events[:3]] == ["generate", "submit", "generate"]
    assert not good.cut
