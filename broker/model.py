"""What the broker asks of a task model: token ids in, token ids and log-probabilities out (HOST-06).

One protocol, three engines behind it: any OpenAI-compatible server, the embedded engine, SkyRL's client.
"""

from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field


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


class Completion(BaseModel):
    """One generation exactly as the engine gave it; never tokenised again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_ids: tuple[int, ...]
    """Generated ids, the end-of-turn token included when it was generated. Never empty."""
    logprobs: tuple[float, ...]
    """Natural-log probability of each id under the sampling distribution at temperature 1; same length."""
    finish_reason: Literal["stop", "length"]


class TaskModel(Protocol):
    """A client of one engine."""

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        """Generate once. Raises `ModelUnavailable` when the engine is down or its answer is malformed."""
        ...
