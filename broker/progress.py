"""What has happened so far in one episode; the record is made of it at the end. Decides nothing."""

from dataclasses import dataclass, field
from typing import Any

from broker.record import ModelCall, Submission, ToolCall
from verifier.task import Verdict


@dataclass
class Progress:
    """Grows while the program runs."""

    model_calls: list[ModelCall] = field(default_factory=list[ModelCall])
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    submissions: list[Submission] = field(default_factory=list[Submission])
    replies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    """Of the submissions. The first is the episode's (FB-02)."""
    steps: int = 0
    """Submissions that ended a step of the task and were answered with the next one's prompt."""
    record_bytes: int = 0
    prompt_tokens: int = 0
    """Of the latest prompt."""
    request: tuple[str, Any] | None = None
    """What the program asked for last, until it is recorded as a call."""
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def last_model_call(self) -> int:
        return len(self.model_calls) - 1
