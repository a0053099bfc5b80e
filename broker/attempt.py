"""What is asked of the broker: one attempt of one harness on one task, and who may reply to it."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from broker.harness import Harness
from broker.record import EpisodeRecord
from catalog.digest import canonical_json, digest_bytes
from verifier.task import Task, Verdict

Mode = Literal["interaction", "evaluation", "rl"]


@dataclass(frozen=True)
class Attempt:
    """One planned episode. `repetition` tells apart attempts of the same program on the same task."""

    task: Task
    harness: Harness
    mode: Mode
    temperature: float
    seed: int
    """Of the first model call; see `call_seed`."""
    repetition: int = 0


@dataclass(frozen=True)
class Lost:
    """An attempt that gave no episode, by a fault of ours; its prompt group is masked and counted."""

    attempt: Attempt
    error: str


class Reply(BaseModel):
    """A researcher's answer to one submission. Public: it holds no verdict beyond what its words say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str | None
    """What the researcher says; None ends the interaction without a word."""
    accepted: bool
    """An accepting reply ends the interaction; the program never sees it, the record does."""
    detail: dict[str, Any] = Field(default_factory=dict)
    """Public facts worth keeping (which wordings were allowed, a fallback)."""


class Researcher(Protocol):
    """Replies in mode interaction. Failures are its own to handle: FB-04 gives a fallback."""

    async def reply(self, task: Task, record_so_far: EpisodeRecord, text: str, verdict: Verdict) -> Reply:
        """`record_so_far` ends with this submission."""
        ...


def task_seed(seed: int, task_id: str, repetition: int = 0, step: int = 0) -> int:
    """The sampling seed of one attempt: the same for every program on the same task (SEL-03).

    >>> task_seed(0, "a") == task_seed(0, "a"), task_seed(0, "a") == task_seed(0, "b")
    (True, False)
    """
    digest = digest_bytes(canonical_json([seed, task_id, repetition, step]))
    return int(digest.removeprefix("sha256:")[:8], 16) % 2**31


def call_seed(seed: int, index: int) -> int:
    """The seed of an episode's model call: a program that asks the same again must not get the same text."""
    return (seed + index) % 2**31
