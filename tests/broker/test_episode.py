"""One episode: budgets, sources, submissions, replies and errors, on a sandbox in name only."""

import asyncio
from typing import Any

import pytest
from episode_programs import LOOP, play, tools

from broker.broker import Broker
from broker.errors import SandboxLost
from broker.model import Sampling
from broker.record import GradedEpisode
from broker.sandbox.base import Role
from broker.sandbox.protocol import encode
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, a_task, attempt, make_broker, right_answer
from tests.fixtures.fake_sandbox import FakeFactory


@pytest.mark.spec("HOST-08", "HOST-06", "HOST-12")
async def test_the_first_submission_ends_an_evaluation_and_everything_is_recorded() -> None:
    task = a_task()
    model = ScriptedModel(right_answer(task))
    broker = make_broker(model)
    graded = await broker.run(attempt(ASK_AND_SUBMIT + "    raise SystemExit('never reached')\n", task))
    record = graded.record
    assert (record.stop_reason, record.error) == ("first_answer", None)
    assert graded.verdict.correct
    call = record.model_calls[0]
    assert [(m.role, m.source) for m in call.messages] == [("system", "harness"), ("user", "task")]
    assert broker.template.decode(call.prompt_ids, skip_special=False) == model.prompts[0]
    assert call.prompt_ids == broker.template.encode([m.model_dump() for m in call.messages])
    assert call.completion.token_ids[-1] == broker.template.end_ids[0]
    assert len(call.completion.logprobs) == len(call.completion.token_ids)
    assert call.text == right_answer(task) == record.submissions[0].text
    assert call.sampling == Sampling(temperature=0.0, seed=7, max_tokens=4096)
    assert record.submissions[0].after_model_call == 0
    assert record.notes["sandbox"] == "fake"


@pytest.mark.spec("HOST-01")
async def test_the_program_receives_the_documented_task_and_no_id() -> None:
    task = a_task("letter")
    factory = FakeFactory()
    broker = make_broker(ScriptedModel("<answer>A</answer>"), factory, model_calls=4, libraries=("numpy 2",))
    await broker.run(attempt(ASK_AND_SUBMIT, task, "rl"))
    given = factory.frames[0][1]["task"]
    assert given["prompt"] == task.prompt
    assert given["system"] == broker.guidance
    assert (given["family"], given["subtask"], given["files"]) == (task.family, task.subtopic, [])
    assert given["budgets"] == {
        "model_calls": 4,
        "tool_calls": 9,
        "completion_tokens": 4096,
        "context_tokens": 24576,
        "seconds": 900.0,
        "tool_seconds": 60.0,
        "user_turns": 0,
        "tool_response_tokens": 2048,
        "tool_history_tokens": 8192,
    }
    assert given["options"] == list(task.options)
    assert given["answer_format"] == "letter"
    assert given["inventory"]["libraries"] == ["numpy 2"]
    assert {table["path"] for table in given["inventory"]["tables"]} == {
        "/lake/metals.csv",
        "/lake/cities.tsv",
    }
    assert task.id not in str(given)


@pytest.mark.spec("HOST-02")
async def test_only_the_execution_sandbox_gets_the_lake() -> None:
    factory = FakeFactory()
    await play(tools("print(1)"), sandboxes=factory)
    roles = {role: lake for role, lake, _ in factory.started}
    assert roles[Role.CONTROLLER] is None
    assert roles[Role.EXECUTION] is not None
    assert factory.closed == 2


async def test_a_program_without_tools_starts_no_execution_sandbox() -> None:
    factory = FakeFactory()
    await play(ASK_AND_SUBMIT, sandboxes=factory)
    assert [role for role, _, _ in factory.started] == [Role.CONTROLLER]
    assert factory.closed == 1


@pytest.mark.spec("HOST-03")
@pytest.mark.parametrize(
    ("code", "budgets", "reason"),
    [
        (LOOP, {"model_calls": 3}, "model_call_budget"),
        (tools("1", "1", "1"), {"tool_calls": 2}, "tool_call_budget"),
        (tools("1"), {"tool_calls": 0}, "tool_call_budget"),
        (tools("TIME OUT", "1"), {}, "tool_timeout"),
        (tools("OUT OF MEMORY", "1"), {}, "out_of_memory"),
        (LOOP, {"completion_tokens": 3}, "output_truncated"),
        ("import time\n" + LOOP + "        time.sleep(5)\n", {"seconds": 0.2}, "time_budget"),
        (ASK_AND_SUBMIT.replace("api.submit(text)", "return"), {}, "no_submission"),
        (ASK_AND_SUBMIT.replace("api.submit(text)", "return"), {"model_calls": 1}, "model_call_budget"),
        (tools("1").replace("api.submit", "len"), {"tool_calls": 1}, "tool_call_budget"),
    ],
)
async def test_each_budget_ends_the_episode_with_its_reason(code: str, budgets: Any, reason: str) -> None:
    graded = await play(code, **budgets)
    assert graded.record.stop_reason == reason
    assert graded.record.error is None, "an exhausted budget is an outcome, not the program's error"
    assert graded.verdict.reward == 0
    assert len(graded.record.model_calls) <= budgets.get("model_calls", 9)
    assert len(graded.record.tool_calls) <= budgets.get("tool_calls", 9)


@pytest.mark.spec("HOST-03")
async def test_a_prompt_that_leaves_no_room_for_a_completion_ends_the_episode() -> None:
    code = LOOP.replace('task["prompt"]}', 'task["prompt"]}, {"role": "system", "content": PAD}')
    graded = await play(
        "N = 0\n"
        + code.replace("PAD", "'x ' * N").replace(
            "        api", "        global N\n        N += 400\n        api"
        ),
        context_tokens=1024,
        completion_tokens=100,
    )
    assert graded.record.stop_reason == "context_budget"
    assert graded.record.notes["refused_prompt_tokens"] > 924
    assert all(len(call.prompt_ids) <= 924 for call in graded.record.model_calls)


@pytest.mark.spec("HOST-03")
async def test_a_cut_completion_is_recorded_but_never_delivered() -> None:
    code = (
        "def run(task, api):\n    api.submit(api.generate([{'role': 'user', 'content': task['prompt']}]))\n"
    )
    graded = await play(code, "a long answer " * 20, completion_tokens=8)
    assert graded.record.stop_reason == "output_truncated"
    assert graded.record.model_calls[0].completion.finish_reason == "length"
    assert graded.record.submissions == ()


@pytest.mark.spec("HOST-03")
async def test_a_tool_response_is_clipped_to_its_budget_for_the_program_too() -> None:
    factory = FakeFactory()
    graded = await play(
        tools("for i in range(500): print('row', i)"), sandboxes=factory, tool_response_tokens=100
    )
    call = graded.record.tool_calls[0]
    assert call.output_truncated
    delivered = [frame["value"] for _, frame in factory.frames if frame["op"] == "result"][-1]
    assert delivered == {"stdout": call.stdout, "error": "", "output_truncated": True}
    assert "tokens left out" in call.stdout


@pytest.mark.spec("HOST-09")
async def test_variables_persist_between_calls_and_an_error_is_an_observation() -> None:
    graded = await play(tools("x = 41", "python\n1 / 0", "  python\nprint(x + 1)\n"))
    calls = graded.record.tool_calls
    assert calls[1].error == "ZeroDivisionError: division by zero"
    assert (calls[2].stdout, calls[2].code) == ("42\n", "print(x + 1)")
    assert [call.after_model_call for call in calls] == [0, 0, 0]


async def test_a_lost_worker_is_an_observation_and_the_episode_goes_on() -> None:
    graded = await play(tools("x = 1", "WORKER LOST", "print('x' in globals())"))
    assert "variables are gone" in graded.record.tool_calls[1].error
    assert graded.record.tool_calls[2].stdout == "False\n"
    assert graded.record.stop_reason == "first_answer"


@pytest.mark.spec("HOST-07")
@pytest.mark.parametrize("code", ["SANDBOX LOST", "NONSENSE"])
async def test_an_unexplained_loss_is_an_error_and_never_an_outcome(code: str) -> None:
    factory = FakeFactory()
    broker = make_broker(ScriptedModel("hello"), factory, retries=1)
    with pytest.raises(SandboxLost):
        await broker.run(attempt(tools(code)))
    assert len(factory.started) == 4, "it was tried twice"
    assert factory.closed == 4


@pytest.mark.spec("SEL-08", "HOST-04")
@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (LOOP + "    boom\n", "crash", "ZeroDivisionError"),
        ("x = 1", "crash", "KeyError"),
        ("def run(task, api:", "crash", "SyntaxError"),
        (ASK_AND_SUBMIT.replace("submit(text)", "submit(3)"), "protocol", "answer as text, got int"),
        (ASK_AND_SUBMIT.replace("submit(text)", "execute(b'x'.hex)"), "protocol", "code as text"),
        (ASK_AND_SUBMIT.replace("submit(text)", "submit('x' * 600_000)"), "protocol", "524288 bytes"),
        (
            ASK_AND_SUBMIT.replace("submit(text)", "raw({'op': 'grade'})"),
            "protocol",
            "unknown operation 'grade'",
        ),
        (ASK_AND_SUBMIT.replace("submit(text)", "raw({})"), "protocol", "unknown operation"),
        (ASK_AND_SUBMIT.replace("submit(text)", "generate('hello')"), "protocol", "list of messages"),
        (
            ASK_AND_SUBMIT.replace(
                "submit(text)", "generate([{'role': 'assistant', 'content': 'I never said'}])"
            ),
            "forged_provenance",
            "no completion contains it",
        ),
    ],
)
async def test_a_fault_of_the_program_is_recorded_by_kind(code: str, kind: str, words: str) -> None:
    if "boom" in code:
        code = LOOP.replace("        api", "        n = 0\n        api") + "        1 / 0\n"
    graded = await play(code)
    assert graded.record.stop_reason == "candidate_error"
    assert graded.record.error is not None
    assert graded.record.error.kind == kind
    assert words in graded.record.error.message
    assert graded.verdict.reward == 0


@pytest.mark.spec("SEL-08", "HOST-01")
async def test_a_right_answer_without_any_model_call_is_the_programs_error_and_scores_nothing() -> None:
    task = a_task()
    broker = make_broker(ScriptedModel("unused"))
    graded = await broker.run(attempt(f"def run(task, api):\n    api.submit({right_answer(task)!r})\n", task))
    assert graded.record.error is not None
    assert graded.record.error.kind == "no_model_call"
    assert graded.record.stop_reason == "candidate_error"
    assert len(graded.record.submissions) == 1
    assert graded.verdict.reward == 0


async def test_a_record_past_its_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.episode._MAX_RECORD_BYTES", 100_000)
    code = LOOP.replace('task["prompt"]}', 'task["prompt"]}, {"role": "system", "content": "x" * 60_000}')
    graded = await play(code, context_tokens=10**6)
    assert len(graded.record.model_calls) == 1
    assert graded.record.error is not None
    assert "record exceeds" in graded.record.error.message


def test_the_same_question_asked_again_gets_another_seed() -> None:
    model = ScriptedModel("hm")
    asyncio.run(_run(make_broker(model, model_calls=3), LOOP))
    assert [sampling.seed for sampling in model.samplings] == [7, 8, 9]


async def _run(broker: Broker, code: str) -> GradedEpisode:
    return await broker.run(attempt(code))


async def test_an_answer_that_fits_into_no_frame_ends_the_episode_as_too_long() -> None:
    class Full(FakeFactory):
        async def start(self, *arguments: Any, **options: Any) -> Any:
            sandbox = await super().start(*arguments, **options)
            plain = sandbox.send

            async def send(frame: Any) -> None:
                encode(frame)  # what the real channel does first
                await plain(frame)

            sandbox.send = send
            return sandbox

    graded = await play(
        ASK_AND_SUBMIT, "\x01" * 300_000, sandboxes=Full(), context_tokens=10**6, completion_tokens=400_000
    )
    assert graded.record.stop_reason == "output_truncated"
    assert graded.record.error is None
    assert len(graded.record.model_calls) == 1


def test_what_a_program_does_to_its_task_stays_in_its_episode() -> None:
    spoil = ASK_AND_SUBMIT.replace("def run(task, api):", "def run(task, api):\n    task['budgets'].clear()")
    broker = make_broker(ScriptedModel("<answer>x</answer>"))
    first, second = (asyncio.run(_run(broker, code)) for code in (spoil, ASK_AND_SUBMIT))
    assert first.record.given == second.record.given
    assert broker.services.handed(a_task(), 0).task["budgets"]["model_calls"] == 9
