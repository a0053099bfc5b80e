"""H0 is a plain loop: one tool block runs, any other text is submitted unchecked."""

from broker.record import StopReason
from harness_lab.seed import seed_harness
from tests.fixtures.episodes import ScriptedModel, attempt, make_broker

CODE = seed_harness().code
TOOL = "<execute>\nprint(6 * 7)\n</execute>"


async def test_a_text_without_a_block_is_submitted_as_it_is() -> None:
    model = ScriptedModel("Perhaps seven.")
    graded = await make_broker(model).run(attempt(CODE))
    assert [s.text for s in graded.record.submissions] == ["Perhaps seven."]
    assert not graded.verdict.format_valid
    assert len(model.prompts) == 1
    assert "<answer>42" not in model.prompts[0]


async def test_one_block_runs_and_its_observation_comes_back_as_tool_text() -> None:
    model = ScriptedModel(TOOL, "<answer>42</answer>")
    graded = await make_broker(model).run(attempt(CODE))
    assert graded.record.tool_calls[0].stdout == "42\n"
    assert graded.record.model_calls[1].messages[-1].source == "tool"
    assert graded.record.stop_reason is StopReason.FIRST_ANSWER


async def test_broken_blocks_cost_a_call_and_the_last_call_is_announced() -> None:
    model = ScriptedModel("<execute>print(1)", "<answer>1</answer>")
    graded = await make_broker(model, model_calls=2).run(attempt(CODE))
    messages = graded.record.model_calls[1].messages
    assert "final answer now" in messages[-1].content
    assert {m.source for m in messages[3:]} == {"harness"}
    assert graded.record.submissions


async def test_a_block_in_an_answer_only_call_ends_without_an_answer() -> None:
    graded = await make_broker(ScriptedModel(TOOL), model_calls=2).run(attempt(CODE))
    assert not graded.record.submissions
    assert graded.record.stop_reason in (StopReason.MODEL_CALL_BUDGET, StopReason.NO_SUBMISSION)
    assert graded.record.error is None
