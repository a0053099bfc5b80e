"""What a program is told of its task and its budgets."""

import pytest
from episode_programs import LOOP, REPLIES, Replying, play, talk

from broker.attempt import Reply


def told(seen: str) -> str:
    """A program that submits what it was told of its budgets after each answer."""
    return f"""
def run(task, api):
    told = [(dict(api.left), api.notice)]
    text = api.generate([{{"role": "user", "content": task["prompt"]}}])
    told.append((api.left, api.notice))
    api.execute("print(1)")
    told.append((api.left, api.notice))
    again = [{{"role": "user", "content": task["prompt"]}}, *([api.notice] if api.notice else [])]
    text = api.generate(again)
    told.append((api.left, api.notice))
    api.submit(repr([{seen} for left, notice in told]))
"""


@pytest.mark.spec("HOST-03", "HOST-04")
async def test_a_program_learns_what_is_left_and_gets_a_marked_notice_when_a_budget_is_used_up() -> None:
    graded = await play(told("(left['model_calls'], left['tool_calls'])"), model_calls=3, tool_calls=1)
    assert graded.record.submissions[0].text == "[(3, 1), (2, 1), (2, 0), (1, 0)]"
    graded = await play(told("notice"), model_calls=3, tool_calls=1)
    one, two = "2 model calls and 0 tool calls", "1 model call and 0 tool calls"
    notices = [
        {"role": "user", "content": f"Budget notice: {t} left.", "source": "harness"} for t in (one, two)
    ]
    assert graded.record.submissions[0].text == repr([None, None, *notices])
    message = graded.record.model_calls[1].messages[-1]
    assert (message.source, message.content) == ("harness", f"Budget notice: {one} left.")


@pytest.mark.spec("HOST-03")
async def test_the_room_left_in_the_context_and_on_the_clock_is_the_hosts_own_count() -> None:
    graded = await play(told("left"), context_tokens=2_000, completion_tokens=100, seconds=50)
    record = graded.record
    for call in record.model_calls:
        assert call.left is not None
        assert call.left.context_tokens == 1_900 - len(call.prompt_ids)
        assert 49 < call.left.seconds <= 50
    lines = eval(record.submissions[0].text)
    assert set(lines[0]) == {"model_calls", "tool_calls", "user_turns", "context_tokens", "seconds"}
    lefts = [record.model_calls[0].left, record.tool_calls[0].left, record.model_calls[1].left]
    assert lines[1:] == [left.model_dump() for left in lefts if left is not None]
    assert record.given is not None
    assert (record.given.budgets.seconds, record.given.user_turns) == (50, 0)


@pytest.mark.spec("HOST-03")
async def test_a_reply_comes_with_the_turns_that_are_left() -> None:
    code = REPLIES.replace(
        "result = api.submit(text)", 'result = api.submit(text + str(api.left["user_turns"]))'
    )
    researcher = Replying([Reply(text="Again?", accepted=False)])
    graded = await talk(code, researcher, "<answer>x</answer>")
    assert [s.text[-1] for s in graded.record.submissions] == ["1", "0"]


@pytest.mark.spec("HOST-04")
async def test_a_budget_notice_without_a_mark_is_refused() -> None:
    code = LOOP.replace(
        'task["prompt"]}', 'task["prompt"]}, {"role": "user", "content": "One call is left."}'
    )
    graded = await play(code)
    assert graded.record.error is not None
    assert "mark it with source harness" in graded.record.error.message
    assert graded.record.refused is not None


@pytest.mark.spec("HOST-04")
async def test_columns_of_the_inventory_are_no_tool_text_in_a_program_that_lists_them() -> None:
    code = """
def run(task, api):
    tables = [" ".join(c["name"] for c in t["columns"]) for t in task["inventory"]["tables"]]
    listed = {"role": "system", "content": "Columns: " + " / ".join(tables * 30)}
    messages = [listed, {"role": "user", "content": task["prompt"]}]
    text = api.generate(messages)
    api.execute("print(%r)" % tables)
    api.submit(api.generate(messages))
"""
    graded = await play(code, tool_response_tokens=40, tool_history_tokens=40)
    assert [call.clippings for call in graded.record.model_calls] == [(), ()]
