"""The gates between a proposal and Val: the first refusal is the recorded reason, and Val sees the rest."""

from dataclasses import replace

import pytest

from broker.guidance import host_guidance, program_task
from broker.harness import Harness
from harness_lab.check import UNCHANGED
from harness_lab.dryrun import dry_run
from harness_lab.gates import WORDS_WITHHELD, Gates, LeakAlarm
from harness_lab.preflight import designate
from harness_lab.words import WITHHELD
from tests.fixtures.episodes import ScriptedModel, a_task, make_broker, release

PARENT = """
TEXT = "Be brief."

def run(task, api):
    while True:
        text = api.generate([
            {"role": "system", "content": task.get("system", TEXT), "source": "harness"},
            {"role": "user", "content": task["prompt"], "source": "task"},
        ])
        api.submit(text)
"""


async def gates(answers: frozenset[str] = frozenset()) -> Gates:
    broker = make_broker(ScriptedModel("<answer>1</answer>"))
    inventory = release().inventory()
    guidance = host_guidance(inventory)
    tasks = [program_task(a_task(), broker.budgets, guidance, inventory, user_turns=1)]
    parent = Harness(code=PARENT)
    return Gates(
        broker=broker,
        parent=parent,
        parent_run=await dry_run(broker.sandboxes, parent, tasks),
        designated=await designate(broker, parent, release().split("train"), 1),
        dry_tasks=tasks,
        accepted_answers=answers,
        seed=1,
    )


def changed(old: str, new: str) -> Harness:
    assert old in PARENT
    return Harness(code=PARENT.replace(old, new))


LIVE = changed('task["prompt"], "source": "task"', 'task["prompt"] + "!", "source": "harness"')


@pytest.mark.spec("SEL-02")
async def test_the_same_bytes_never_run() -> None:
    held = await gates()
    assert (await held.examine(Harness(code=PARENT), [])).reason == "byte-identical to parent"
    assert (await held.examine(LIVE, [LIVE])).reason == "byte-identical to an earlier candidate"


@pytest.mark.spec("SEL-02", "PROP-07")
async def test_a_dead_change_is_dropped_before_preflight_and_a_live_one_passes() -> None:
    held = await gates()
    dead = await held.examine(changed("Be brief.", "Think."), [])
    assert (dead.passed, dead.reason, dead.attempts) == (False, UNCHANGED, ())
    live = await held.examine(LIVE, [])
    assert live.passed
    assert live.attempts
    assert live.new_text == (a_task().prompt + "!",), "the record names the text that reaches the model"
    assert live.gone_text == (a_task().prompt,)
    assert any("dead" in notice for notice in live.notices)


async def test_a_program_that_does_not_parse_or_crashes_is_refused_with_its_reason() -> None:
    held = await gates()
    assert "syntax error" in (await held.examine(changed("def run(", "def run"), [])).reason
    crash = await held.examine(changed("text = api", "{}['x']\n        text = api"), [])
    assert not crash.passed
    assert "KeyError" in crash.reason


@pytest.mark.spec("EVID-06")
async def test_a_train_answer_in_sent_text_is_refused_and_a_held_out_prompt_stops_the_run() -> None:
    leaking = await (await gates(frozenset({"<answer>Belgium</answer>"}))).examine(
        changed('task["prompt"], "source": "task"', 'task["prompt"] + "Belgium", "source": "harness"'), []
    )
    assert not leaking.passed
    assert "leak" in leaking.reason
    held_out = release().split("test")[0]
    with pytest.raises(LeakAlarm):
        await (await gates()).examine(changed("Be brief.", held_out.id), [])


@pytest.mark.spec("PROP-07", "SEL-02")
async def test_what_only_another_kind_of_task_or_episode_shows_is_a_live_change() -> None:
    held = await gates()
    other = changed("api.submit(text)", "api.submit(text if len(text) else 'none')")
    assert (await held.examine(other, [])).passed
    letters = changed("api.submit(text)", "api.submit(text + 'x' * len(task['options']))")
    assert (await held.examine(letters, [])).reason == UNCHANGED
    inventory = release().inventory()
    more = [program_task(a_task("letter"), held.broker.budgets, "", inventory, user_turns=1)]
    gate = await replace(held, more_dry_tasks=more).examine(letters, [])
    assert gate.passed
    assert gate.change is not None
    assert "submit" in gate.change.first_difference


@pytest.mark.spec("EVID-06")
@pytest.mark.parametrize("hidden", ["''.join(c for c in '{}' if c != '#')", "'{}'.translate({{35: None}})"])
async def test_what_really_reaches_the_model_is_scanned_however_it_was_put_together(hidden: str) -> None:
    def disguised(text: str) -> Harness:
        sent = f"task['prompt'] + {hidden.format('#'.join(text))}, 'source': 'harness'"
        return changed('task["prompt"], "source": "task"', sent)

    held = await gates(frozenset({"<answer>Belgium</answer>"}))
    gate = await held.examine(disguised(" Belgium"), [])
    assert not gate.passed
    assert "leak: answer in text that reaches the model" in gate.reason
    with pytest.raises(LeakAlarm):
        await held.examine(disguised(" " + release().split("val")[0].id), [])


@pytest.mark.spec("PROP-07")
async def test_case_t04_a_preference_that_first_comes_together_in_sent_text_is_refused() -> None:
    hidden = "'If unsure, answer ' + next(iter('C')) + '.'"
    gate = await (await gates()).examine(
        changed('task["prompt"], "source": "task"', f'task["prompt"] + {hidden}, "source": "harness"'), []
    )
    assert not gate.passed
    assert "prefers an option" in gate.reason


@pytest.mark.spec("PROP-07")
async def test_case_t02_the_gate_lists_the_text_that_reaches_the_model() -> None:
    code = PARENT.replace('TEXT = "Be brief."', 'RULES: str = "Read the row."')
    gate = await (await gates()).examine(
        Harness(code=code.replace('task.get("system", TEXT)', 'task["system"] + RULES')), []
    )
    assert gate.passed
    assert gate.change is not None
    assert [(item.text, item.reaches_model) for item in gate.change.texts] == [("Read the row.", True)]
    assert gate.notices == ()


@pytest.mark.spec("EVID-06")
@pytest.mark.parametrize(
    "broken", ["def run(task, api)  # HERE", "# HERE\n" + PARENT, f"'''HERE'''\n{PARENT}"]
)
async def test_a_held_out_string_stops_the_run_also_in_a_program_that_would_be_refused(broken: str) -> None:
    for split in ("val", "test"):
        held_out = release().split(split)[0]
        for text in (held_out.id, " ".join(held_out.prompt.split())):
            with pytest.raises(LeakAlarm):
                await (await gates()).examine(Harness(code=broken.replace("HERE", text)), [])


@pytest.mark.spec("EVID-06", "PROP-08")
async def test_a_candidate_whose_words_were_withheld_is_refused_and_its_program_still_stops_the_run() -> None:
    held = await gates()
    gate = await held.examine(LIVE, [], withheld=True)
    assert (gate.passed, gate.reason, gate.attempts) == (False, WORDS_WITHHELD, ())
    with pytest.raises(LeakAlarm):
        await held.examine(changed("Be brief.", release().split("val")[0].id), [], withheld=True)


@pytest.mark.spec("EVID-05", "EVID-06")
async def test_the_text_of_a_crash_carries_no_held_out_string_into_the_history() -> None:
    test = release().split("test")[0]
    hidden = "#".join(test.id)
    crash = f"if text: raise ValueError(''.join(c for c in '{hidden}' if c != '#'))"
    gate = await (await gates()).examine(changed("api.submit", f"{crash}\n        api.submit"), [])
    assert not gate.passed
    assert WITHHELD in gate.reason
    assert test.id not in gate.model_dump_json()
