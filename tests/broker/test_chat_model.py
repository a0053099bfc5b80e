"""A task model behind a chat endpoint: words and no token ids, counted by a declared tokenizer (HOST-11)."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from chat_endpoints import (
    HARNESS,
    QUESTION,
    USAGE,
    ask,
    chat,
    chat_broker,
    counting,
    play,
    said,
    serving,
)

from broker.client import CompletionsClient
from broker.errors import ModelUnavailable, PromptRefused
from broker.evaluation import evaluate
from broker.inference import chat_model_folder
from broker.model import Completion
from broker.record import EpisodeRecord
from broker.template import ChatTemplate
from rl.contract import refuse_chat_model
from rl.errors import TokenIdsNeeded
from rl.rows import build_rows
from tests.fixtures.episodes import TINY_MODEL, make_broker, release
from tests.fixtures.stub_policy import ScriptedPolicy, known_answers
from tests.fixtures.stub_server import StubServer, chat_from

# -- what is sent -------------------------------------------------------------------------------------------


@pytest.mark.spec("HOST-12")
@pytest.mark.parametrize("dialect", ["openai", "vllm"])
async def test_every_sampling_parameter_that_the_endpoint_knows_is_sent(dialect: Any) -> None:
    with serving(said()) as server:
        await ask(server, dialect=dialect)
        await ask(server, dialect=dialect, length_parameter="max_completion_tokens")
    plain, newer = (asked.body for asked in server.asked)
    known = {
        "model": "m",
        "messages": QUESTION,
        "temperature": 0.5,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 11,
        "n": 1,
        "stream": False,
    }
    if dialect == "vllm":
        known |= {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        known |= {"chat_template_kwargs": {"enable_thinking": False}}
    assert plain == {**known, "max_tokens": 32}
    assert newer == {**known, "max_completion_tokens": 32}


@pytest.mark.spec("HOST-05", "HOST-11")
async def test_the_record_holds_what_was_sent_and_a_tool_message_goes_as_user() -> None:
    code = """
def run(task, api):
    api.execute("print(12345678901)")
    api.generate([
        {"role": "system", "content": task["system"], "source": "harness", "private": 1},
        {"role": "user", "content": task["prompt"], "source": "task"},
        {"role": "tool", "content": "12345678901", "source": "tool"},
    ])
"""
    with serving(said()) as server:
        graded = await play(server, code)
    sent = server.asked[0].body["messages"]
    [call] = graded.record.model_calls
    assert [message["content"] for message in sent] == [message.content for message in call.messages]
    assert [message["role"] for message in sent] == ["system", "user", "user"]
    assert {tuple(message) for message in sent} == {("role", "content")}


# -- what an answer is --------------------------------------------------------------------------------------


@pytest.mark.spec("HOST-11")
@pytest.mark.parametrize(
    ("value", "text", "finish"),
    [
        (said("hello"), "hello", "stop"),
        (said(""), "", "stop"),
        (said(None), "", "stop"),
        (said(None, refusal="I will not."), "I will not.", "stop"),
        (said("hel", "length"), "hel", "length"),
        (said(None, "length"), "", "length"),
        (said("", "content_filter"), "", "content_filter"),
        (said("hello", tool_calls=[], function_call=None, reasoning_content="hm"), "hello", "stop"),
        (said("hello", usage=None), "hello", "stop"),
    ],
)
async def test_an_answer_that_is_one_is_taken_as_it_is(value: Any, text: str, finish: str) -> None:
    with serving(value) as server:
        completion = await ask(server)
    assert (completion.text, completion.finish_reason) == (text, finish)
    assert (completion.token_ids, completion.logprobs, completion.token_exact) == ((), (), False)
    assert len(server.asked) == 1


@pytest.mark.spec("HOST-07", "HOST-11")
@pytest.mark.parametrize(
    ("value", "words", "requests"),
    [
        (said("", usage=None), "generated nothing", 2),
        (said(None, usage={**USAGE, "completion_tokens": 0}), "generated nothing", 2),
        (said("half", None), "ended with None", 2),
        (said("half", "error"), "ended with 'error'", 2),
        ({"error": {"message": "upstream is down"}}, "error instead of an answer.*upstream is down", 2),
        ((b"", 502), "status 502", 2),
        ((b"slow down", 429), "'not now'.*requests_per_minute", 0),
        (({"error": {"code": "insufficient_quota"}}, 429), "refused the request with status 429", 1),
        (said(None, "tool_calls", tool_calls=[{"id": "1"}]), "switch its tool call parser off", 1),
        (said("x", function_call={"name": "f"}), "switch its tool call parser off", 1),
        (said("x", "banana"), "ended a generation with 'banana'", 1),
        ({"choices": []}, "malformed at choices", 1),
        ({"choices": said()["choices"] * 2}, "malformed at choices", 1),
        (said(["a part"]), "malformed at choices.0.message.content", 1),  # type: ignore[arg-type]
        (b'{"choices": [{"message": {"content": "\\ud800"}, "finish_reason": "stop"}]}', "not JSON", 1),
        (({"error": "no key"}, 401), "status 401.*the endpoint's key", 1),
        ((b"", 404), "status 404", 1),
    ],
)
async def test_an_answer_that_is_none_is_asked_again_if_it_may_pass_and_never_scored(
    value: Any, words: str, requests: int
) -> None:
    with serving(value) as server:
        with pytest.raises(ModelUnavailable, match=words) as caught:
            await ask(server)
        assert len(server.asked) == (requests or len(server.asked))
        model = chat(server.url)
        with pytest.raises(ModelUnavailable):
            await evaluate(chat_broker(model), HARNESS, "val", seed=1)
        await model.close()
    assert "\n" not in str(caught.value)


@pytest.mark.spec("HOST-03", "SEL-08")
@pytest.mark.parametrize(
    ("value", "stop"),
    [
        (said("half an ans", "length"), "output_truncated"),
        (said("word " * 200), "output_truncated"),
        (said("", "content_filter"), "content_filtered"),
        (({"error": {"code": "content_filter", "message": "policy"}}, 400), "content_filtered"),
    ],
)
async def test_a_cut_and_a_withheld_answer_end_the_episode_under_their_own_reasons(
    value: Any, stop: str
) -> None:
    with serving(value) as server:
        graded = await play(server)
    assert (graded.record.stop_reason, graded.record.error) == (stop, None)
    assert len(graded.record.model_calls) == 1
    assert not graded.record.submissions


@pytest.mark.spec("SEL-08", "HOST-11")
async def test_messages_that_only_the_endpoint_refuses_are_the_programs_fault() -> None:
    refusal = ({"error": {"message": "roles must alternate"}}, 400)
    with serving(refusal, said("ok")) as server:
        graded = await play(server)
    error = graded.record.error
    assert error is not None
    assert error.kind == "protocol"
    assert "roles must alternate" in error.message
    assert server.asked[1].body["messages"] == [{"role": "user", "content": "Say ok."}]


@pytest.mark.spec("HOST-07", "HOST-11")
@pytest.mark.parametrize(
    "broken", [({"error": {"message": "your credit is used up"}}, 400), (b"", 500)], ids=["400", "500"]
)
async def test_a_refusal_of_everything_is_not_the_programs_fault(broken: Any) -> None:
    refusal = ({"error": {"message": "your credit is used up"}}, 400)
    with serving(refusal, broken) as server, pytest.raises(ModelUnavailable) as caught:
        await ask(server)
    assert not isinstance(caught.value, PromptRefused)


@pytest.mark.spec("HOST-11")
async def test_a_prompt_that_only_the_endpoint_finds_too_long_names_the_tokenizer() -> None:
    for error in ({"code": "context_length_exceeded"}, {"message": "maximum context length is 8192 tokens"}):
        with (
            serving(({"error": error}, 400)) as server,
            pytest.raises(ModelUnavailable, match=r"lower budgets.context_tokens.*tokenizer in model\.name"),
        ):
            await ask(server)


# -- the host's own accounting ------------------------------------------------------------------------------


@pytest.mark.spec("HOST-03", "HOST-11")
async def test_the_context_is_counted_with_the_declared_tokenizer_before_anything_is_sent() -> None:
    with serving(said()) as server:
        graded = await play(server, context_tokens=128, completion_tokens=64)
        assert graded.record.error is not None
        assert "context_budget" in graded.record.error.message
        assert server.asked == []
        graded = await play(server, context_tokens=4096, completion_tokens=64)
    [call] = graded.record.model_calls
    rendered = [{"role": m.role, "content": m.content} for m in call.messages]
    assert (call.prompt_ids, call.prompt_tokens) == ((), len(counting().encode(rendered)))
    assert call.text == "<answer>x</answer>"
    assert (graded.record.token_exact, graded.record.tokenizer) == (False, counting().digest)
    assert EpisodeRecord.model_validate_json(graded.record.model_dump_json()) == graded.record


@pytest.mark.spec("HOST-11")
def test_a_folder_with_a_tokenizer_alone_counts_any_sequence_of_messages(tmp_path: Path) -> None:
    shutil.copyfile(TINY_MODEL / "tokenizer.json", tmp_path / "tokenizer.json")
    with pytest.raises(ModelUnavailable, match="no chat template"):
        ChatTemplate.load(tmp_path)
    template = ChatTemplate.load(tmp_path, counting=True)
    odd = [{"role": role, "content": role} for role in ("user", "user", "system", "tool", "assistant")]
    assert len(template.encode(odd)) > len(template.encode(odd[:-1])) > 0


@pytest.mark.spec("HOST-11", "SCHED-07")
def test_two_served_models_are_two_models_although_one_tokenizer_counts_for_both() -> None:
    from catalog.digest import digest_json

    def content(url: str, name: str) -> str:
        with chat_model_folder(TINY_MODEL, url, name) as folder:
            files = {path.name: path.read_text() for path in sorted(folder.iterdir())}
            assert "model.safetensors" not in files
            return digest_json(files)

    assert content("http://a/v1", "x") == content("http://a/v1/", "x")
    assert len({content("http://a/v1", "x"), content("http://a/v1", "y"), content("http://b/v1", "x")}) == 3


@pytest.mark.spec("HOST-11", "RL-05")
async def test_rl_refuses_the_records_and_the_setting_by_name() -> None:
    with serving(said()) as server:
        graded = await play(server)
    with pytest.raises(TokenIdsNeeded, match="chat endpoint without token ids: RL needs a vLLM server"):
        build_rows([graded], [graded.record.task_id], 1)
    with pytest.raises(TokenIdsNeeded, match=r"model.inference=chat .* RL needs a vLLM server") as caught:
        refuse_chat_model("chat")
    assert "\n" not in str(caught.value)
    refuse_chat_model("endpoint")


@pytest.mark.spec("HOST-11", "SEL-03")
async def test_an_evaluation_through_words_equals_one_through_token_ids() -> None:
    policy = ScriptedPolicy(known_answers([release().root]))
    with StubServer(policy=policy, chat_policy=chat_from(policy, ChatTemplate.load(TINY_MODEL))) as stub:
        words, ids = chat(stub.url), CompletionsClient(stub.url, stub.model_name)
        by_words, _ = await evaluate(chat_broker(words), HARNESS, "test", seed=3)
        by_ids, _ = await evaluate(make_broker(ids, completion_tokens=64), HARNESS, "test", seed=3)
        await words.close()
        await ids.close()
    assert by_words == by_ids


def test_a_completion_holds_ids_or_words_and_never_both() -> None:
    for fields in ({"token_ids": (1,), "text": "x"}, {"token_ids": ()}):
        with pytest.raises(ValueError, match="token ids, or the words"):
            Completion.model_validate({"logprobs": (), "finish_reason": "stop", **fields})
