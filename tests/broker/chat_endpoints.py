"""A task model behind a chat endpoint, its answers, and episodes with it."""

from typing import Any

from broker.broker import Broker
from broker.chat_model import ChatClient, ChatModel
from broker.endpoint import Endpoint, EndpointSettings
from broker.harness import Harness
from broker.model import Completion, Sampling
from broker.record import GradedEpisode
from broker.template import ChatTemplate
from tests.fixtures.episodes import ASK_AND_SUBMIT, TINY_MODEL, attempt, make_broker
from tests.fixtures.faulty_server import Asked, Fault, FaultyServer, answer

HARNESS = Harness(code=ASK_AND_SUBMIT)
SAMPLING = Sampling(temperature=0.5, seed=11, max_tokens=32)
QUESTION = [{"role": "user", "content": "why?"}]
USAGE = {"prompt_tokens": 40, "completion_tokens": 8, "total_tokens": 48}
PRICES = {"prompt_price": 2.0, "completion_price": 10.0}


def counting() -> ChatTemplate:
    return ChatTemplate.load(TINY_MODEL, counting=True)


def chat(
    url: str, *, back_off: float = 0.01, settings: dict[str, Any] | None = None, **options: Any
) -> ChatModel:
    fields = {"timeout_seconds": 5, "attempts": 2, "patience_seconds": 0.05, **(settings or {})}
    endpoint = Endpoint(url, EndpointSettings.model_validate(fields), back_off=back_off)
    return ChatModel(ChatClient(endpoint, "m"), counting().count, **options)


def chat_broker(model: ChatModel, **changes: Any) -> Broker:
    broker = make_broker(model, **{"retries": 0, "completion_tokens": 64, **changes})
    broker.template = counting()
    return broker


def said(text: str | None = "<answer>x</answer>", finish: Any = "stop", **changes: Any) -> dict[str, Any]:
    """A chat answer; `changes` are fields of the message, or `usage`."""
    usage = {"usage": changes.pop("usage")} if "usage" in changes else {"usage": USAGE}
    message = {"role": "assistant", "content": text, **changes}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"model": "m-2026-01", "choices": [choice], **usage}


def serving(*values: Any) -> FaultyServer:
    """Answers in turn; the last one for good. A pair is a value and its status."""

    def behave(asked: Asked) -> Fault:
        value = values[min(asked.number, len(values)) - 1]
        if callable(value):
            return value(asked)
        return answer(*value) if isinstance(value, tuple) else answer(value)

    return FaultyServer(behave)


async def ask(server: FaultyServer, **options: Any) -> Completion:
    model = chat(server.url, **options)
    try:
        return await model.reply(QUESTION, SAMPLING, 7)
    finally:
        await model.close()


async def play(server: FaultyServer, code: str = ASK_AND_SUBMIT, **changes: Any) -> GradedEpisode:
    model = chat(server.url)
    try:
        return await chat_broker(model, **changes).run(attempt(code))
    finally:
        await model.close()
