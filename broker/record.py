"""The record of one episode: public by type (no verdict, no reference), complete enough to replay.

`EpisodeRecord` may become evidence. `GradedEpisode` adds the verdict and never does (EVID-02).
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from broker.model import Completion, Sampling
from verifier.task import Verdict

Source = Literal["task", "model", "tool", "feedback", "harness"]


class StopReason(StrEnum):
    """Why an episode ended. Only `candidate_error` makes a program ineligible (SEL-08)."""

    FIRST_ANSWER = "first_answer"
    """Submitted, and no reply was due: the ordinary end in evaluation and RL."""
    ACCEPTED = "accepted"
    PROGRAM_ENDED = "program_ended"
    """`run` returned after a reply without submitting again."""
    NO_SUBMISSION = "no_submission"
    MODEL_CALL_BUDGET = "model_call_budget"
    TOOL_CALL_BUDGET = "tool_call_budget"
    TOOL_TIMEOUT = "tool_timeout"
    TIME_BUDGET = "time_budget"
    CONTEXT_BUDGET = "context_budget"
    OUTPUT_TRUNCATED = "output_truncated"
    """A completion hit its length limit."""
    CONTENT_FILTERED = "content_filtered"
    """A chat endpoint withheld its answer by a filter of its own."""
    OUT_OF_MEMORY = "out_of_memory"
    CANDIDATE_ERROR = "candidate_error"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(_Frozen):
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    source: Source


class Clipping(_Frozen):
    """A message that the model saw shorter than the program sent it."""

    message_index: int
    original_tokens: int
    visible_tokens: int


class ModelCall(_Frozen):
    index: int
    messages: tuple[Message, ...]
    """What the model really saw, after clipping, with verified sources."""
    clippings: tuple[Clipping, ...] = ()
    prompt_ids: tuple[int, ...]
    """Empty when a chat endpoint answered: what it made of the messages is not known."""
    prompt_tokens: int | None = None
    """The host's own count, where there are no prompt ids."""
    completion: Completion
    text: str
    """The completion decoded without special tokens: what the program received."""
    sampling: Sampling
    seconds: float = Field(ge=0)


class ToolCall(_Frozen):
    index: int
    after_model_call: int
    """Index of the latest model call before this one, or -1."""
    code: str
    stdout: str
    error: str
    """Empty when the call succeeded."""
    output_truncated: bool
    seconds: float = Field(ge=0)


class Submission(_Frozen):
    text: str
    after_model_call: int
    reply: str | None = None
    """The researcher's reply that the program received, or None when the submission ended the episode."""


class ProgramError(_Frozen):
    """The program's own fault, recorded beside any earlier submission (FB-02)."""

    kind: Literal["crash", "protocol", "forged_provenance", "no_model_call"]
    message: str


class EpisodeRecord(_Frozen):
    """Everything public that happened in one attempt of one harness on one task."""

    schema_version: Literal[1] = 1
    task_id: str
    harness: str
    """Digest of the program."""
    mode: Literal["interaction", "evaluation", "rl"]
    repetition: int = 0
    model_calls: tuple[ModelCall, ...]
    tool_calls: tuple[ToolCall, ...]
    submissions: tuple[Submission, ...]
    stop_reason: StopReason
    error: ProgramError | None = None
    token_exact: bool = True
    """False when a chat endpoint without token ids answered: never trained on (HOST-11)."""
    tokenizer: str = ""
    """Digest of the tokenizer and template that counted every budget of this episode."""
    seconds: float
    """Episode clock: queueing and auxiliary calls excluded."""
    queue_seconds: float = 0.0
    """Time spent waiting in the host's own queues; not charged to the program."""
    notes: dict[str, Any] = Field(default_factory=dict)
    """Host observations worth keeping (retries, sandbox kind)."""


class GradedEpisode(_Frozen):
    """A record with the verdict of its first submission. Private: never evidence."""

    record: EpisodeRecord
    verdict: Verdict
