"""One episode: budgets, sources, submissions, replies and errors, on a sandbox in name only."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from broker.attempt import Reply
from broker.broker import Broker
from broker.errors import SandboxLost
from broker.model import Completion, Sampling
from broker.record import EpisodeRecord, GradedEpisode
from broker.sandbox.base import Role
from broker.sandbox.protocol import encode
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, a_task, attempt, make_broker, right_answer
from tests.fixtures.fake_sandbox import FakeFactory
from verifier.task import Task, Verdict

LOOP = """
def run(task, api):
    while True:
        api.generate([{"role": "user", "content": task["prompt"]}])
"""
TOOLS = """
def run(task, api):
    api.generate([{"role": "user", "content": task["prompt"]}])
    for code in CODES:
        seen = api.execute(code)
    api.submit(seen["stdout"])
"""
REPLIES = """
def run(task, api):
    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(5):
        text = api.generate(messages)
        result = api.submit(text)
        assert result["done"] is False
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": result["reply"]}]
"""


def tools(*codes: str) -> str:
    return TOOLS.replace("CODES", repr(codes))


async def play(
    code: str, *texts: str, sandboxes: Any = None, model: Any = None, **budgets: Any
) -> GradedEpisode:
    broker = make_broker(model or ScriptedModel(*(texts or ("<answer>A</answer>",))), sandboxes, **budgets)
    return await broker.run(attempt(code))


class Replying:
    """A researcher that gives these replies in turn and keeps what it was shown."""

    def __init__(self, replies: Sequence[Reply], seconds: float = 0.0) -> None:
        self._replies = list(replies)
        self._seconds = seconds
        self.seen: list[tuple[EpisodeRecord, str, Verdict]] = []

    async def reply(self, task: Task, record_so_far: EpisodeRecord, text: str, verdict: Verdict) -> Reply:
        self.seen.append((record_so_far, text, verdict))
        await asyncio.sleep(self._seconds)
        return self._replies[len(self.seen) - 1]


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


async def talk(code: str, researcher: Replying, *texts: str, **budgets: Any) -> GradedEpisode:
    broker = make_broker(ScriptedModel(*texts), **budgets)
    return await broker.run(attempt(code, mode="interaction"), researcher)


@pytest.mark.spec("FB-01", "FB-02")
async def test_the_first_answer_counts_even_when_the_one_after_feedback_is_right() -> None:
    right = right_answer(a_task())
    researcher = Replying([Reply(text="Please look again.", accepted=False, detail={"case": "generic"})])
    graded = await talk(REPLIES, researcher, "no tag", right)
    record = graded.record
    assert [s.text for s in record.submissions] == ["no tag", right]
    assert [s.reply for s in record.submissions] == ["Please look again.", None]
    assert record.stop_reason == "first_answer"
    assert not graded.verdict.correct
    assert not graded.verdict.format_valid
    assert record.model_calls[1].messages[-1].source == "feedback"
    assert record.notes["replies"] == [
        {"submission": 0, "text": "Please look again.", "accepted": False, "detail": {"case": "generic"}}
    ]
    so_far, text, verdict = researcher.seen[0]
    assert (len(researcher.seen), text, verdict.format_valid) == (1, "no tag", False)
    assert len(so_far.model_calls) == len(so_far.submissions) == 1


@pytest.mark.spec("FB-01")
async def test_an_accepted_answer_ends_the_interaction_and_the_program_never_sees_the_reply() -> None:
    right = right_answer(a_task())
    graded = await talk(REPLIES, Replying([Reply(text="Good work.", accepted=True)]), right)
    assert graded.record.stop_reason == "accepted"
    assert graded.record.submissions[0].reply is None
    assert graded.record.notes["replies"][0]["text"] == "Good work."
    assert graded.verdict.correct


@pytest.mark.spec("FB-02")
async def test_a_crash_after_a_right_first_answer_is_recorded_beside_its_reward() -> None:
    right = right_answer(a_task())
    code = REPLIES.replace("        messages +=", "        1 / 0\n        messages +=")
    graded = await talk(code, Replying([Reply(text="Again?", accepted=False)]), right)
    assert graded.verdict.correct
    assert graded.record.stop_reason == "candidate_error"
    assert graded.record.error is not None
    assert graded.record.error.kind == "crash"


async def test_a_program_that_returns_after_a_reply_has_ended() -> None:
    code = ASK_AND_SUBMIT
    graded = await talk(code, Replying([Reply(text="Again?", accepted=False)]), "<answer>x</answer>")
    assert graded.record.stop_reason == "program_ended"


@pytest.mark.spec("HOST-08", "HOST-03")
async def test_no_reply_is_asked_for_in_rl_and_evaluation() -> None:
    for mode in ("rl", "evaluation"):
        researcher = Replying([])
        broker = make_broker(ScriptedModel("<answer>x</answer>"))
        graded = await broker.run(attempt(REPLIES, mode=mode), researcher)
        assert graded.record.stop_reason == "first_answer"
        assert researcher.seen == []


async def test_an_interaction_without_a_researcher_is_a_callers_mistake() -> None:
    with pytest.raises(ValueError, match="needs a researcher"):
        await make_broker(ScriptedModel("x")).run(attempt(ASK_AND_SUBMIT, mode="interaction"))


@pytest.mark.spec("HOST-03")
async def test_the_researchers_time_is_not_charged() -> None:
    researcher = Replying([Reply(text="Again?", accepted=False)], seconds=0.6)
    graded = await talk(REPLIES, researcher, "<answer>x</answer>", seconds=0.5)
    assert graded.record.stop_reason == "first_answer"
    assert len(graded.record.submissions) == 2
    assert graded.record.seconds < 0.5


class SlowModel(ScriptedModel):
    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        await asyncio.sleep(0.1)
        return await super().complete(prompt_ids, sampling)


class OneAtATime(SlowModel):
    """An engine of one sequence behind the host's own queue (case T17)."""

    def __init__(self, broker_limit: Any) -> None:
        super().__init__("<answer>x</answer>")
        self._limit = broker_limit

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        async with self._limit.slot():
            return await super().complete(prompt_ids, sampling)


@pytest.mark.spec("HOST-03", "HOST-07")
async def test_waiting_in_the_hosts_queue_is_reported_and_never_charged() -> None:
    from broker.limiter import Limiter

    # A second of room for each episode's own tenth, for this machine may be busy.
    broker = make_broker(OneAtATime(Limiter(1)), limit=16, seconds=1.2)
    results = await broker.run_all([attempt(ASK_AND_SUBMIT) for _ in range(16)])
    records = [result.record for result in results if isinstance(result, GradedEpisode)]
    assert [record.stop_reason for record in records] == ["first_answer"] * 16
    assert max(record.queue_seconds for record in records) > 1.25, (
        "the last one waited longer than its budget"
    )
    assert max(record.seconds for record in records) < 1.2


@pytest.mark.spec("HOST-03")
async def test_a_slow_model_call_ends_at_the_episode_clock() -> None:
    began = time.monotonic()
    graded = await play(LOOP, model=SlowModel("thinking"), seconds=0.25)
    assert graded.record.stop_reason == "time_budget"
    assert time.monotonic() - began < 2
    assert len(graded.record.model_calls) <= 3, "the call that was under way is recorded"


def test_the_same_question_asked_again_gets_another_seed() -> None:
    model = ScriptedModel("hm")
    asyncio.run(_run(make_broker(model, model_calls=3), LOOP))
    assert [sampling.seed for sampling in model.samplings] == [7, 8, 9]


async def _run(broker: Broker, code: str) -> GradedEpisode:
    return await broker.run(attempt(code))


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


@pytest.mark.spec("HOST-03", "HOST-07")
async def test_the_hosts_own_work_on_a_prompt_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    import broker.episode as module

    plain = module.build_prompt

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return plain(*arguments)

    monkeypatch.setattr(module, "build_prompt", slow)
    graded = await play(ASK_AND_SUBMIT, seconds=0.25)
    assert graded.record.stop_reason == "first_answer"
    assert graded.record.seconds < 0.2


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


def test_what_a_program_does_to_its_task_stays_in_its_episode() -> None:
    spoil = ASK_AND_SUBMIT.replace("def run(task, api):", "def run(task, api):\n    task['budgets'].clear()")
    broker = make_broker(ScriptedModel("<answer>x</answer>"))
    first, second = (asyncio.run(_run(broker, code)) for code in (spoil, ASK_AND_SUBMIT))
    assert first.record.given == second.record.given
    assert broker.services.handed(a_task(), 0).task["budgets"]["model_calls"] == 9
