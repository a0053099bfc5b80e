"""Preflight tells "executes" and "finishes" apart, and asks no more than the inherited program reached."""

import pytest

from broker.harness import Harness
from harness_lab.preflight import Designated, designate, preflight
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, make_broker, release
from verifier.task import Task

TRAIN: tuple[Task, ...] = release().split("train")[:4]
SPENDS = """
def run(task, api):
    while True:
        api.generate([{"role": "user", "content": task["prompt"]}])
        api.submit if False else None
"""
CRASHES = "def run(task, api):\n    api.generate([])\n    api.submit('x')\n"
FIRST = repr(TRAIN[0].prompt)
COSTLY_FIRST = ASK_AND_SUBMIT.replace(
    "    api.submit", f"    if task['prompt'] == {FIRST}:\n        api.execute('1')\n    api.submit"
)


async def chosen(text: str, code: str = ASK_AND_SUBMIT) -> Designated:
    return await designate(make_broker(ScriptedModel(text)), Harness(code=code), TRAIN, 1)


async def tried(code: str, text: str, designated: Designated) -> tuple[bool, str, int]:
    broker = make_broker(ScriptedModel(text), model_calls=3)
    found = await preflight(broker, Harness(code=code), designated, TRAIN, 1)
    return found.passed, found.reason, len(found.attempts)


@pytest.mark.spec("SEL-01", "SCHED-04")
async def test_the_list_is_measured_and_fewest_calls_come_first() -> None:
    found = await chosen("<answer>1</answer>", COSTLY_FIRST)
    assert found.finishable
    assert len(found.attempts) == len(TRAIN)
    assert TRAIN[0].id not in found.task_ids[:-1]


@pytest.mark.spec("SEL-01", "SCHED-04")
async def test_a_task_that_leaves_a_call_to_spare_comes_before_one_that_takes_them_all() -> None:
    # Three model calls are all there are; a tool call and two model calls are as many, and leave one.
    code = f"""
def run(task, api):
    messages = [{{"role": "user", "content": task["prompt"]}}]
    text = api.generate(messages)
    if task["prompt"] == {FIRST}:
        api.generate(messages)
        api.generate(messages)
    else:
        api.generate(messages)
        api.execute("1")
        api.execute("2")
    api.submit(text)
"""
    broker = make_broker(ScriptedModel("<answer>1</answer>"), model_calls=3)
    found = await designate(broker, Harness(code=code), TRAIN, 1)
    calls = {attempt.task_id: attempt.model_calls + attempt.tool_calls for attempt in found.attempts}
    assert calls[TRAIN[0].id] < min(calls[task.id] for task in TRAIN[1:])
    assert found.task_ids[-1] == TRAIN[0].id, "fewer calls, and none to spare"


@pytest.mark.spec("SEL-01")
async def test_a_valid_format_is_enough_and_a_right_answer_is_not_needed() -> None:
    designated = await chosen("<answer>1</answer>")
    assert designated.format_valid
    passed, reason, _ = await tried(ASK_AND_SUBMIT, "<answer>999</answer>", designated)
    assert (passed, reason) == (True, "executes and finishes")


@pytest.mark.spec("SEL-01")
async def test_case_t07_spending_every_call_gets_the_next_task_and_fails_only_after_three() -> None:
    passed, reason, count = await tried(SPENDS, "x", await chosen("<answer>1</answer>"))
    assert (passed, count) == (False, 3)
    assert "executes, did not finish any of 3" in reason
    assert "model_call_budget" in reason


@pytest.mark.spec("SEL-01")
async def test_a_program_error_fails_at_once_with_its_reason() -> None:
    passed, reason, count = await tried(CRASHES, "x", await chosen("<answer>1</answer>"))
    assert (passed, count) == (False, 1)
    assert "the program fails" in reason


@pytest.mark.spec("SEL-01")
async def test_invalid_formats_fail_only_where_the_inherited_program_had_a_valid_one() -> None:
    assert not (await tried(ASK_AND_SUBMIT, "no tags", await chosen("<answer>1</answer>")))[0]
    weak = await chosen("no tags")
    assert (weak.finishable, weak.format_valid) == (True, False)
    assert (await tried(ASK_AND_SUBMIT, "no tags", weak))[0]


@pytest.mark.spec("SEL-01")
async def test_an_inherited_program_that_finishes_nothing_never_ends_the_run() -> None:
    hopeless = await chosen("x", SPENDS)
    assert not hopeless.finishable
    assert len(hopeless.task_ids) == len(TRAIN)
    assert (await tried(SPENDS, "x", hopeless))[0]
    assert not (await tried(CRASHES, "x", hopeless))[0]


async def test_other_splits_than_train_are_refused() -> None:
    with pytest.raises(ValueError, match="Train tasks only"):
        await designate(make_broker(ScriptedModel("x")), Harness(code="x"), release().split("val"), 1)
