"""A model behind an OpenAI-compatible chat endpoint that gives words and no token ids (HOST-11, HOST-12).

`ChatClient` is one conversation with such an endpoint; the auxiliary model uses it too. `ChatModel` makes a
task model of it, for evaluation and harness learning. What an answer can be, and what follows:

| the endpoint answers                        | it is                                                        |
|---------------------------------------------|--------------------------------------------------------------|
| `stop` with text                            | the completion                                               |
| `stop`, no text, tokens were generated      | an empty completion: the model said nothing aloud            |
| `stop`, no text, no sign of any token       | asked again, then `ModelUnavailable`                         |
| `length`                                    | cut at its length limit, as in any engine: ends the episode  |
| `content_filter`, or refused for content    | withheld: ends the episode under a reason of its own         |
| a tool call                                 | `ModelUnavailable`: none was offered, the endpoint's parser  |
|                                             | took the model's words apart                                 |
| `error`, `abort`, no finish reason          | asked again, then `ModelUnavailable`                         |
| 400 or 422, but a plain question is served  | the messages are at fault: `PromptRefused`                   |
| any refusal for length                      | `ModelUnavailable`: the declared tokenizer counts too little |

A message of role `tool` is sent as `user`, for such endpoints know it only beside tool calls of their own.
Knows nothing of episodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from broker.endpoint import Endpoint, EndpointRefused, PassingFailure, malformed
from broker.errors import ModelUnavailable, PromptRefused
from broker.model import Completion, Sampling, Usage
from catalog.digest import digest_json

Dialect = Literal["openai", "vllm"]
LengthParameter = Literal["max_tokens", "max_completion_tokens"]
_FILTER_CODES: Final = frozenset(
    {"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"}
)
_LENGTH_CODES: Final = frozenset({"context_length_exceeded", "string_above_max_length"})
_LENGTH_WORDS: Final = ("context length", "context window", "context_length", "too long", "too many tokens")
_PROBE: Final = ({"role": "user", "content": "Say ok."},)
_PROBE_TOKENS: Final = 16


@dataclass(frozen=True)
class ChatAnswer:
    """What an endpoint said, and what it took."""

    text: str
    finish_reason: Literal["stop", "length", "content_filter"]
    usage: Usage


@dataclass
class Bill:
    """Tokens that were paid for, and by whose count."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reported: bool = True
    """Every answer told its own usage; otherwise the host counted."""

    def add(self, prompt_tokens: int, completion_tokens: int, *, reported: bool = True) -> None:
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.reported = self.reported and reported


class ChatClient:
    """Messages in, one answer out."""

    def __init__(self, endpoint: Endpoint, model_name: str) -> None:
        self.endpoint = endpoint
        self.model_name = model_name
        self.spent = Bill()
        """Of all answers, those that had to be asked again included."""

    @property
    def cost(self) -> float | None:
        """Of `spent`, by the configured prices."""
        return self.endpoint.settings.cost(self.spent.prompt_tokens, self.spent.completion_tokens)

    def spending(self) -> str:
        """One line for the person who pays."""
        bill, cost = self.spent, self.cost
        counted = "" if bill.reported else " (counted by the host)"
        price = "" if cost is None else f", {cost:.4f} at the configured prices"
        return (
            f"{self.model_name}: {self.endpoint.requests} requests, {bill.prompt_tokens} prompt and "
            f"{bill.completion_tokens} completion tokens{counted}{price}"
        )

    async def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        parameters: Mapping[str, Any],
        *,
        longest: int,
        prompt_tokens: int,
        count: Callable[[str], int],
    ) -> ChatAnswer:
        """One answer. `parameters` are sent as they are; `longest`: most tokens of the answer.

        `prompt_tokens` and `count` are the host's own counts, for an endpoint that reports no usage. Raises
        `ModelUnavailable`; `EndpointRefused`, one of them, when this request is refused.
        """
        body = orjson.dumps({"model": self.model_name, "messages": list(messages), **parameters})
        bill, reserved = Bill(), prompt_tokens + longest

        def read(value: dict[str, Any]) -> _Answer:
            answer = _parse(value)
            if answer.usage is not None:
                bill.add(answer.usage.prompt_tokens, answer.usage.completion_tokens)
            else:
                bill.add(prompt_tokens, count(answer.said), reported=False)
            _judge(answer)
            return answer

        try:
            answer, requests = await self.endpoint.ask(
                "POST", "/chat/completions", body, read, tokens=reserved
            )
        finally:
            used = bill.prompt_tokens + bill.completion_tokens
            self.endpoint.give_back(reserved - used)
            self.spent.add(bill.prompt_tokens, bill.completion_tokens, reported=bill.reported)
        usage = Usage(
            prompt_tokens=bill.prompt_tokens,
            completion_tokens=bill.completion_tokens,
            reported=bill.reported,
            cost=self.endpoint.settings.cost(bill.prompt_tokens, bill.completion_tokens),
            requests=requests,
            served=answer.model,
        )
        return ChatAnswer(answer.said, answer.finish_reason, usage)

    async def close(self) -> None:
        await self.endpoint.close()


class ChatModel:
    """`ChatTaskModel` over HTTP."""

    def __init__(
        self,
        client: ChatClient,
        count: Callable[[str], int],
        *,
        dialect: Dialect = "openai",
        length_parameter: LengthParameter = "max_tokens",
    ) -> None:
        """`count`: tokens of a text by the declared tokenizer. `vllm` knows more parameters than `openai`."""
        self.client = client
        self._count = count
        self._dialect: Dialect = dialect
        self._length_parameter: LengthParameter = length_parameter

    async def reply(
        self, messages: Sequence[Mapping[str, str]], sampling: Sampling, prompt_tokens: int
    ) -> Completion:
        """Generate once. Raises `ModelUnavailable`, or `PromptRefused` when the messages are at fault."""
        try:
            answer = await self._ask(messages, sampling, prompt_tokens)
        except EndpointRefused as refused:
            if refused.code in _FILTER_CODES:
                nothing = Usage(prompt_tokens=0, completion_tokens=0, reported=False)
                return _completion("", "content_filter", nothing)
            await self._blame(refused)
            raise
        return _completion(answer.text, answer.finish_reason, answer.usage)

    async def identity(self) -> str:
        """Digest of endpoint and served model, by one plain question with every parameter that a run sends.

        Raises `ModelUnavailable`: key, name and parameters are proved before anything rests on them.
        """
        answer = await self._probe()
        known = {"base_url": self.client.endpoint.base_url, "model": self.client.model_name}
        return digest_json({**known, "served": answer.usage.served})

    async def close(self) -> None:
        await self.client.close()

    async def _blame(self, refused: EndpointRefused) -> None:
        """Raise what a refusal means, or return when it is not the messages' fault."""
        said = refused.said.lower()
        if refused.code in _LENGTH_CODES or any(words in said for words in _LENGTH_WORDS):
            raise ModelUnavailable(
                f"the chat endpoint finds a prompt too long that fits the host's own count ({refused.said}): "
                "lower budgets.context_tokens, or name the served model's own tokenizer in model.name"
            ) from refused
        if refused.status in (400, 422):
            await self._probe()
            raise PromptRefused(f"the chat endpoint refuses these messages: {refused.said}") from refused

    async def _probe(self) -> ChatAnswer:
        sampling = Sampling(temperature=0.0, seed=0, max_tokens=_PROBE_TOKENS)
        return await self._ask(_PROBE, sampling, sum(self._count(item["content"]) for item in _PROBE))

    async def _ask(
        self, messages: Sequence[Mapping[str, str]], sampling: Sampling, prompt_tokens: int
    ) -> ChatAnswer:
        return await self.client.ask(
            [_as_sent(message) for message in messages],
            self._parameters(sampling),
            longest=sampling.max_tokens,
            prompt_tokens=prompt_tokens,
            count=self._count,
        )

    def _parameters(self, sampling: Sampling) -> dict[str, Any]:
        known: dict[str, Any] = {
            self._length_parameter: sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed,
            "n": 1,
            "stream": False,
        }
        if self._dialect == "vllm":
            known |= {
                "top_k": sampling.top_k,
                "min_p": 0.0,
                "repetition_penalty": sampling.repetition_penalty,
                "chat_template_kwargs": {"enable_thinking": False},
            }
        return known


def _as_sent(message: Mapping[str, str]) -> dict[str, str]:
    role = "user" if message["role"] == "tool" else message["role"]
    return {"role": role, "content": message["content"]}


def _completion(
    text: str, finish_reason: Literal["stop", "length", "content_filter"], usage: Usage
) -> Completion:
    return Completion(token_ids=(), logprobs=(), finish_reason=finish_reason, text=text, usage=usage)


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True)


class _Message(_Wire):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class _Choice(_Wire):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Wire):
    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt


class _Answer(_Wire):
    choices: list[_Choice] = Field(min_length=1, max_length=1)
    usage: _Usage | None = None
    model: str = ""

    @property
    def said(self) -> str:
        message = self.choices[0].message
        return message.content or message.refusal or ""

    @property
    def finish_reason(self) -> Any:
        return self.choices[0].finish_reason


def _parse(value: dict[str, Any]) -> _Answer:
    if value.get("error"):
        raise PassingFailure(f"an error instead of an answer: {' '.join(str(value['error']).split())[:200]}")
    try:
        return _Answer.model_validate(value)
    except ValidationError as error:
        raise malformed("the chat endpoint", error) from error


def _judge(answer: _Answer) -> None:
    """Raise what an answer means that is no completion; see the table above."""
    choice = answer.choices[0]
    called = choice.message.tool_calls or choice.message.function_call
    if called or choice.finish_reason in ("tool_calls", "function_call"):
        raise ModelUnavailable(
            "the chat endpoint answered with a tool call although no tool was offered: switch its tool call "
            "parser off, so that the model's text arrives whole"
        )
    if choice.finish_reason in (None, "error", "abort"):
        raise PassingFailure(f"the generation ended with {choice.finish_reason!r}")
    if choice.finish_reason not in ("stop", "length", "content_filter"):
        raise ModelUnavailable(f"the chat endpoint ended a generation with {choice.finish_reason!r}")
    generated = answer.usage.completion_tokens if answer.usage else 0
    if choice.finish_reason == "stop" and not answer.said and not generated:
        raise PassingFailure("the chat endpoint generated nothing")
