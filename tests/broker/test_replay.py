"""A recorded episode can be played again without model and tools, and every difference has a place."""

from typing import Any

import orjson
import pytest
from replay_samples import ASK, again, changed_call, divergence, record_of, stored

from broker.attempt import Mode
from broker.harness import Harness
from broker.record import (
    EpisodeRecord,
    GradedEpisode,
    RecordError,
    StopReason,
    episode_id,
    read_episode,
)
from broker.replay import ReplayError, compare_tokens, recorded_events, replay
from broker.sandbox.base import SandboxFactory
from tests.broker.test_program_contract import MEMORY, REACT, SUMMARY, THRIFTY, UNRULY
from tests.fixtures.episodes import release, template
from tests.fixtures.fake_sandbox import FakeFactory
from verifier.task import Verdict

LONG = """
def run(task, api):
    messages = [{"role": "system", "content": task["system"]}, {"role": "user", "content": task["prompt"]}]
    for turn in range(4):
        text = api.generate(messages)
        seen = api.execute("for i in range(60): print('row', i * 7919 + %d)" % turn)
        messages += [{"role": "assistant", "content": text}, {"role": "tool", "content": seen["stdout"]}]
        if api.notice:
            messages.append(api.notice)
    api.submit("%s, %d left" % (text, api.left["model_calls"]))
"""
ENDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "crash": (f"def run(task, api):\n    {ASK}\n    1 / 0\n", {}, "candidate_error"),
    "forged": (
        f"def run(task, api):\n    {ASK}\n    api.generate([{{'role': 'assistant', 'content': 'I did'}}])\n",
        {},
        "candidate_error",
    ),
    "protocol": (f"def run(task, api):\n    {ASK}\n    api.submit(3)\n", {}, "candidate_error"),
    "calls": (
        f"def run(task, api):\n    while True:\n        {ASK}\n",
        {"model_calls": 2},
        "model_call_budget",
    ),
    "calls, returned": (f"def run(task, api):\n    {ASK}\n", {"model_calls": 1}, "model_call_budget"),
    "tools": (
        f"def run(task, api):\n    {ASK}\n    while True:\n        api.execute('print(1)')\n",
        {"tool_calls": 2},
        "tool_call_budget",
    ),
    "tools, returned": (
        f"def run(task, api):\n    {ASK}\n    api.execute('print(1)')\n",
        {"tool_calls": 1},
        "tool_call_budget",
    ),
    "context": (
        f"def run(task, api):\n    {ASK}\n    api.generate([{{'role': 'system', 'content': 'x ' * 3000}}])\n",
        {"context_tokens": 2048, "completion_tokens": 512},
        "context_budget",
    ),
    "truncated": (f"def run(task, api):\n    {ASK}\n", {"completion_tokens": 2}, "output_truncated"),
    "time out": (f"def run(task, api):\n    {ASK}\n    api.execute('TIME OUT')\n", {}, "tool_timeout"),
    "memory": (f"def run(task, api):\n    {ASK}\n    api.execute('OUT OF MEMORY')\n", {}, "out_of_memory"),
    "clock": (
        f"import time\ndef run(task, api):\n    {ASK}\n    time.sleep(9)\n",
        {"seconds": 0.3},
        "time_budget",
    ),
    "silent": (f"def run(task, api):\n    {ASK}\n", {}, "no_submission"),
    "no model call": ("def run(task, api):\n    api.submit('<answer>A</answer>')\n", {}, "candidate_error"),
    "no model call, returned": ("def run(task, api):\n    pass\n", {}, "candidate_error"),
    "no model call, asleep": (
        "import time\ndef run(task, api):\n    time.sleep(9)\n",
        {"seconds": 0.2},
        "candidate_error",
    ),
}


@pytest.mark.spec("HOST-05")
@pytest.mark.parametrize(
    ("code", "mode"),
    [
        (REACT, "evaluation"),
        (MEMORY, "evaluation"),
        (SUMMARY, "evaluation"),
        (THRIFTY, "interaction"),
        (UNRULY, "evaluation"),
        (LONG, "evaluation"),
    ],
)
async def test_a_program_in_its_sandbox_sends_the_same_bytes_again(
    sandboxes: SandboxFactory, code: str, mode: Mode
) -> None:
    record = stored(await record_of(code, mode, sandboxes))
    result = await again(record, code, sandboxes)
    assert result.divergence is None
    assert result.messages == sum(len(call.messages) for call in record.model_calls)


@pytest.mark.spec("SEL-03")
async def test_a_program_that_iterates_over_a_set_asks_the_same_in_every_sandbox(
    sandboxes: SandboxFactory,
) -> None:
    code = (
        "def run(task, api):\n    words = ' '.join(set(task['prompt'].split()))\n"
        '    asked = [{"role": "system", "content": words}, {"role": "user", "content": task["prompt"]}]\n'
        "    api.submit(api.generate(asked))\n"
    )
    record = await record_of(code, sandboxes=sandboxes)
    assert (await again(record, code, sandboxes)).divergence is None


@pytest.mark.spec("HOST-05")
async def test_messages_that_were_cut_are_compared_as_they_were_sent() -> None:
    budgets = {"tool_response_tokens": 128, "tool_history_tokens": 160, "model_calls": 5}
    record = stored(await record_of(LONG, **budgets))
    cut = [clipping for call in record.model_calls for clipping in call.clippings]
    assert cut
    assert all(clipping.original for clipping in cut)
    result = await again(record, LONG)
    assert (result.divergence, result.not_compared) == (None, 0)
    last = record.model_calls[-1]
    spoilt = last.clippings[-1].model_copy(update={"original": (last.clippings[-1].original or "") + "!"})
    call = last.model_copy(update={"clippings": (*last.clippings[:-1], spoilt)})
    changed = record.model_copy(update={"model_calls": (*record.model_calls[:-1], call)})
    found = await divergence(changed, LONG)
    assert found.where == f"model call {last.index}, message {spoilt.message_index}"
    assert found.byte == len((spoilt.original or "").encode()) - 1


@pytest.mark.parametrize("name", ENDS)
async def test_every_end_of_an_episode_is_the_same_again(name: str) -> None:
    code, budgets, reason = ENDS[name]
    record = stored(await record_of(code, **budgets))
    assert record.stop_reason == reason
    assert (await again(record, code)).divergence is None


@pytest.mark.parametrize("name", ["crash", "forged", "protocol", "tools", "context", "silent", "truncated"])
async def test_a_program_that_asks_for_less_than_the_record_says_is_seen(name: str) -> None:
    code, budgets, _ = ENDS[name]
    record = await record_of(code, **budgets)
    one_more = record.model_calls[-1].model_copy(update={"index": len(record.model_calls)})
    found = await divergence(record.model_copy(update={"model_calls": (*record.model_calls, one_more)}), code)
    assert found.where.startswith(f"model call {one_more.index}") or found.where.startswith("tool call")


async def test_a_record_that_contradicts_itself_is_no_divergence() -> None:
    record = await record_of(ENDS["no model call"][0])
    spoilt = record.model_copy(update={"error": None, "stop_reason": StopReason.PROGRAM_ENDED})
    with pytest.raises(ReplayError, match="nothing follows submission 0"):
        await again(spoilt, ENDS["no model call"][0])


async def test_what_the_program_was_told_of_its_budgets_is_told_again() -> None:
    code = (
        "def run(task, api):\n    texts = []\n    for turn in range(2):\n"
        f"        {ASK}\n        texts.append(repr((api.left, api.notice)))\n    api.submit(str(texts))\n"
    )
    record = await record_of(code, model_calls=3)
    assert "'model_calls': 1" in record.submissions[0].text
    assert "Budget notice: 1 model call and 9 tool calls left." in record.submissions[0].text
    assert (await again(record, code)).divergence is None


async def test_tool_calls_and_submissions_of_one_turn_keep_their_order() -> None:
    code = (
        f"def run(task, api):\n    {ASK}\n    api.execute('print(1)')\n    api.submit('no')\n"
        "    api.execute('print(2)')\n    api.submit('yes')\n"
    )
    record = await record_of(code, "interaction")
    kinds = [kind for kind, _ in recorded_events(record)]
    assert kinds == ["generate", "execute", "submit", "execute", "submit"]
    assert (await again(record, code)).divergence is None


@pytest.mark.spec("HOST-05", "HOST-06")
async def test_the_recorded_messages_give_the_recorded_ids() -> None:
    record = await record_of(LONG, tool_response_tokens=128, tool_history_tokens=160, model_calls=5)
    assert compare_tokens(stored(record), template()) is None
    found = compare_tokens(
        changed_call(record, 1, prompt_ids=(*record.model_calls[1].prompt_ids[:-1], 5)), template()
    )
    assert found is not None
    assert found.where == f"model call 1, prompt token {len(record.model_calls[1].prompt_ids) - 1}"
    found = compare_tokens(changed_call(record, 0, text="other"), template())
    assert found is not None
    assert (found.where, found.byte) == ("model call 0, text", 0)
    with pytest.raises(ReplayError, match="counted with tokenizer"):
        compare_tokens(record.model_copy(update={"tokenizer": "sha256:0"}), template())


def as_version_1(record: EpisodeRecord) -> dict[str, Any]:
    """The record as the first version wrote it."""
    plain = record.model_dump(mode="json")
    plain["schema_version"] = 1
    for name in ("given", "refused", "token_exact", "tokenizer"):
        del plain[name]
    for call in plain["model_calls"]:
        del call["left"], call["prompt_tokens"]
        for clipping in call["clippings"]:
            del clipping["original"]
    for tool in plain["tool_calls"]:
        del tool["left"]
    for submission in plain["submissions"]:
        del submission["left"], submission["after_tool_call"]
    return plain


@pytest.mark.parametrize("name", [*ENDS, "long"])
async def test_records_of_version_1_are_read_and_replayed(name: str) -> None:
    budgets: dict[str, Any]
    code, budgets, _ = ENDS.get(name) or (
        LONG.replace("if api.notice", "if False").replace(
            ' % (text, api.left["model_calls"])', " % (text, 0)"
        ),
        {"tool_response_tokens": 128, "tool_history_tokens": 160, "model_calls": 5},
        "",
    )
    record = await record_of(code, **budgets)
    old = read_episode(orjson.dumps(as_version_1(record)))
    assert (old.schema_version, old.given) == (1, None)
    assert record.given is not None
    result = await replay(old, Harness(code=code), release(), record.given, FakeFactory())
    assert result.divergence is None
    assert (result.not_compared > 0) == (name == "long")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"schema_version": 3}', "schema version 3, this program reads 1 and 2: use the version of rinr"),
        (b'{"record": {"schema_version": "two"}}', "schema version two"),
        (b'{"schema_version": 2, "task_id": 1}', "a malformed episode record, at task_id"),
        (b"{}", "no episode record"),
        (b"[1]", "no episode record"),
        (b"{", "not JSON"),
        (b'{"schema_version": [[1]]}', "schema version"),
    ],
)
def test_what_is_no_readable_record_is_refused_in_one_line(data: bytes, words: str) -> None:
    with pytest.raises(RecordError, match=words) as caught:
        read_episode(data)
    assert "\n" not in str(caught.value)


async def test_the_wrong_program_release_or_task_is_named() -> None:
    code = ENDS["silent"][0]
    record = await record_of(code)
    assert record.given is not None

    async def with_given(**changes: Any) -> None:
        given = record.given.model_copy(update=changes) if record.given else None
        assert given is not None
        await replay(record, Harness(code=code), release(), given, FakeFactory())

    with pytest.raises(ReplayError, match="ran the program sha256"):
        await replay(record, Harness(code=code + "\n"), release(), record.given, FakeFactory())
    with pytest.raises(ReplayError, match=r"ran on release sha256:0.*--release"):
        await with_given(release="sha256:0")
    with pytest.raises(ReplayError, match="describes task"):
        await with_given(guidance="other words")
    lost = record.model_copy(update={"task_id": "gone"})
    with pytest.raises(ReplayError, match="no task gone"):
        await replay(lost, Harness(code=code), release(), record.given, FakeFactory())


async def test_an_episodes_id_is_that_of_its_stored_record() -> None:
    record = await record_of(ENDS["silent"][0])
    graded = GradedEpisode(
        record=record, verdict=Verdict(format_valid=False, correct=False, answer=None, reason="")
    )
    data = orjson.loads(orjson.dumps(graded.model_dump(mode="json")))
    assert episode_id(data["record"]) == episode_id(stored(record).model_dump(mode="json"))
