"""One request on its way through the engine. Must not know slots, steps or other requests."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from broker.errors import ModelUnavailable
from broker.model import Completion, Sampling


@dataclass
class Generation:
    """A prompt, what was generated for it so far, and who waits for it."""

    prompt: tuple[int, ...]
    sampling: Sampling
    future: "Future[Completion]"
    uniforms: Iterator[float]
    generated: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])

    @property
    def stored(self) -> int:
        """Positions whose keys and values are in the slot: all but the last generated token's."""
        return len(self.prompt) + len(self.generated) - 1

    @property
    def remaining(self) -> int:
        """Tokens that it may still generate."""
        return self.sampling.max_tokens - len(self.generated)

    def next_uniform(self) -> float:
        """The number that its next draw takes; nothing is taken at temperature 0."""
        return next(self.uniforms) if self.sampling.temperature else 0.0

    def extend(self, tokens: Sequence[int], logprobs: Sequence[float], stop_ids: frozenset[int]) -> int:
        """Take tokens up to the first stop token; returns how many. What follows it never happened."""
        for count, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True), start=1):
            self.generated.append(token)
            self.logprobs.append(logprob)
            if token in stop_ids:
                return count
        return len(tokens)

    def is_done(self, stop_ids: frozenset[int]) -> bool:
        """Nothing more is to be generated, or nobody waits."""
        return self.remaining <= 0 or self.generated[-1] in stop_ids or self.future.cancelled()

    def finish(self, stop_ids: frozenset[int]) -> None:
        reason: Literal["stop", "length"] = "stop" if self.generated[-1] in stop_ids else "length"
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(
                Completion(
                    token_ids=tuple(self.generated), logprobs=tuple(self.logprobs), finish_reason=reason
                )
            )

    def fail(self, error: ModelUnavailable) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
