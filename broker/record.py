"""The record of one episode: public by type (no verdict, no reference), complete enough to replay.

`EpisodeRecord` may become evidence. `GradedEpisode` adds the verdict and never does (EVID-02).

Schema versions: 1 was the first. 2 adds what replay needs (`Clipping.original`, `Submission.after_tool_call`,
`left`, `given`, `refused`); records of version 1 are read as they are. `read_episode` refuses any other.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker.budgets import Budgets
from broker.model import Completion, Sampling
from catalog.digest import digest_bytes, digest_json
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
    """A message that the model saw otherwise than the program sent it."""

    message_index: int
    original_tokens: int
    """Of a very long text a lower bound, for it is not tokenised."""
    visible_tokens: int
    original: str | None = None
    """What the program sent. None in records of version 1."""


class Left(_Frozen):
    """What the program was told of its budgets beside an answer; it can count none of these itself."""

    model_calls: int
    tool_calls: int
    user_turns: int
    context_tokens: int
    """How much longer than the latest prompt the next one may be."""
    seconds: float
    """Of the episode clock, at least 0."""

    def notice(self) -> str | None:
        """The words of the budget notice that is due now: none while both kinds of call are left."""
        if self.model_calls > 1 and self.tool_calls > 0:
            return None
        calls = f"{self.model_calls} model call{'' if self.model_calls == 1 else 's'}"
        tools = f"{self.tool_calls} tool call{'' if self.tool_calls == 1 else 's'}"
        return f"Budget notice: {calls} and {tools} left."


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
    left: Left | None = None
    """None in records of version 1."""


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
    left: Left | None = None
    """None in records of version 1."""


class Submission(_Frozen):
    text: str
    after_model_call: int
    reply: str | None = None
    """The researcher's reply that the program received, or None when the submission ended the episode."""
    after_tool_call: int | None = None
    """Index of the latest tool call before it, or -1. None in records of version 1."""
    left: Left | None = None
    """Beside a reply; None in records of version 1."""


class ProgramError(_Frozen):
    """The program's own fault, recorded beside any earlier submission (FB-02)."""

    kind: Literal["crash", "protocol", "forged_provenance", "no_model_call"]
    message: str


class Given(_Frozen):
    """What the program was given beside its task, so that the same can be given again."""

    release: str
    """Digest of the release that has the task."""
    budgets: Budgets
    guidance: str
    libraries: tuple[str, ...]
    user_turns: int
    task: str
    """Digest of the dictionary that the program received."""


class EpisodeRecord(_Frozen):
    """Everything public that happened in one attempt of one harness on one task."""

    schema_version: Literal[1, 2] = 2
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
    refused: str | None = None
    """Digest of the last request, when no call came of it (`request_digest`)."""
    given: Given | None = None
    """None in records of version 1."""


def _is_false(value: bool) -> bool:
    # Written only where it says something: episodes without it keep their bytes.
    return not value


class OutsideAnswer(_Frozen):
    """What a judge or a check script said of one submission, word for word. Private: it quotes rubrics."""

    by: Literal["judge", "script"]
    criterion: str
    """Of a judge: the criterion's name; of a script: its step's name."""
    satisfaction: dict[str, float]
    """By criterion, or the script's rewards by key."""
    why: str
    raw: tuple[str, ...]
    """A judge's texts in order, or the tail of a script's output."""
    identity: str
    """Of the judge, or digest of the script's files."""


def _is_empty(value: object) -> bool:
    # Written only where it says something: episodes without a rubric keep their bytes.
    return not value


class GradedEpisode(_Frozen):
    """A record with the verdict of its first submission. Private: never evidence."""

    record: EpisodeRecord
    verdict: Verdict
    outside: tuple[OutsideAnswer, ...] = Field(default=(), exclude_if=_is_empty)
    """What judge and scripts said, in order, of every submission."""
    repaired: bool = Field(default=False, exclude_if=_is_false)
    """A later submission, after feedback, was right where the first was not. Never part of the reward."""


class RecordError(Exception):
    """Something that should be an episode's record is none; one line."""


_VERSIONS: Final = (1, 2)


def read_episode(data: bytes) -> EpisodeRecord:
    """The record in JSON of a record, or of a graded episode. Raises `RecordError`."""
    try:
        value: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"not JSON: {error}") from error
    if isinstance(value, dict) and "record" in value:
        value = cast("Mapping[str, Any]", value)["record"]
    if not isinstance(value, dict) or "schema_version" not in value:
        raise RecordError("no episode record: it has no schema_version")
    version = cast("Mapping[str, Any]", value)["schema_version"]
    if version not in _VERSIONS:
        raise RecordError(
            f"an episode record of schema version {str(version)[:20]}, this program reads 1 and 2: "
            "use the version of rinr that made it"
        )
    try:
        return EpisodeRecord.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"a malformed episode record, at {place}: {first['msg']}") from error


def episode_id(record: Mapping[str, Any]) -> str:
    """The digest that names an episode: of its record's JSON as it was stored."""
    return digest_json(record)


def request_digest(op: str, value: Any) -> str:
    """Names a request of the program that was not served. Values without a JSON form are named by type."""
    try:
        return digest_json([op, value])
    except (TypeError, ValueError, RecursionError):
        return digest_bytes(f"{op} {type(value).__name__}".encode())
