"""What the broker asks of a task model: token ids in, token ids and log-probabilities out (HOST-06).

One protocol, three engines behind it: any OpenAI-compatible server, the embedded engine, SkyRL's client. A
chat endpoint without token ids has a protocol of its own, so that no type lets its words into training
(HOST-11).
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Sampling(BaseModel):
    """Every sampling parameter, sent explicitly with every call (HOST-12)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    """-1 is off."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = Field(ge=0, lt=2**31)
    max_tokens: int = Field(ge=1)


class Usage(BaseModel):
    """What one reply of a chat endpoint was billed for, answers that had to be asked again included."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    reported: bool
    """The endpoint's own numbers; otherwise the host counted with the declared tokenizer."""
    cost: float | None = None
    """By the configured prices, in their currency; None without prices."""
    requests: int = Field(default=1, ge=1)
    """Requests sent for this reply, repeats included."""
    served: str = ""
    """The model's name as the answer gives it; an alias may move to another model during a run."""


class Completion(BaseModel):
    """One generation exactly as the engine gave it; never tokenised again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_ids: tuple[int, ...]
    """Generated ids, the end-of-turn token included when it was generated. Empty only beside `text`."""
    logprobs: tuple[float, ...]
    """Natural-log probability of each id under the sampling distribution at temperature 1; same length."""
    finish_reason: Literal["stop", "length", "content_filter"]
    """`content_filter`: a chat endpoint withheld its answer."""
    text: str | None = None
    """The words of a chat endpoint, which gives no ids; None where ids are known."""
    usage: Usage | None = None
    """Of a chat endpoint's reply."""

    @model_validator(mode="after")
    def _ids_or_words(self) -> Self:
        if bool(self.token_ids) == (self.text is not None):
            raise ValueError("a completion has token ids, or the words of a chat endpoint")
        return self

    @property
    def token_exact(self) -> bool:
        """The ids are the engine's own, so that they may be trained on."""
        return self.text is None

    @property
    def generated_tokens(self) -> int:
        """As exactly as it is known."""
        return len(self.token_ids) if self.usage is None else self.usage.completion_tokens


class TaskModel(Protocol):
    """A client of one engine."""

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """Generate once. Raises `ModelUnavailable` when the engine is down or its answer is malformed."""
        ...


@runtime_checkable
class ChatTaskModel(Protocol):
    """A client of one chat endpoint: messages in, words out (HOST-11)."""

    async def reply(
        self, messages: Sequence[Mapping[str, str]], sampling: Sampling, prompt_tokens: int
    ) -> Completion:
        """Generate once; `prompt_tokens` is the host's own count of the messages.

        Raises `ModelUnavailable`, and `PromptRefused` when the endpoint works but not with these messages.
        """
        ...
