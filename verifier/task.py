"""The public half of a task and the verdict on an answer. References live in `verifier/references.py`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from verifier.answer_format import AnswerFormat as AnswerFormat
from verifier.surroundings import Surroundings

Split = Literal["train", "val", "test"]
Checker = Literal["judge", "script"]


def _is_empty(value: object) -> bool:
    # Written only where it says something: releases frozen before the field existed keep their bytes.
    return not value


def _is_none(value: object) -> bool:
    return value is None


class Question(BaseModel):
    """One scientific question before it has a split, everything of it public."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    """Unique within its release; never shown to a program."""
    family: str
    subtopic: str
    material_group: str
    """Tasks that share source material share this name; splits keep groups whole."""
    prompt: str
    """The question as the model sees it: options and the asked answer form included."""
    options: tuple[str, ...] = ()
    """Option texts in letter order; empty unless the format is `letter`."""
    answer_format: AnswerFormat
    files: tuple[str, ...] = ()
    """Base names of the task's own public assets."""
    source: str = Field(default="", exclude_if=_is_empty)
    """File and row that it was imported from; never shown to a program."""
    licence: str = Field(default="", exclude_if=_is_empty)
    """Its own licence, where it differs within the release."""
    canary: str = Field(default="", exclude_if=_is_empty)
    """The source's mark of rows that must not enter training corpora; never shown to a program."""
    checked_by: tuple[Checker, ...] = Field(default=(), exclude_if=_is_empty)
    """Who decides criteria of its rubric outside the grader; a run without them is refused at the start."""
    surroundings: Surroundings | None = Field(default=None, exclude_if=_is_empty)
    """Of a task that works on files."""


class Task(Question):
    """A question of a frozen release: the public half of a task."""

    split: Split


class Verdict(BaseModel):
    """The grader's word on one submitted text. Private: it never enters evidence (EVID-02)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_valid: bool
    """Exactly one `<answer>` pair whose content parses under the task's format."""
    correct: bool
    """Implies `format_valid`."""
    answer: str | None
    """The parsed answer, normalised, or None when the format is invalid."""
    reason: str
    """One short clause: why the format failed, or how the answer compared. Made to be counted."""
    diagnosis: str = Field(default="", exclude_if=_is_empty)
    """What stood between the tags, every pair of them, shortened: for a reader who asks why."""

    score: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False, exclude_if=_is_none)
    """R of a task with a rubric, which is correct from its pass mark on; None without one."""
    criteria: dict[str, float] = Field(default_factory=dict[str, float], exclude_if=_is_empty)
    """Satisfaction by name of the rubric's criteria."""

    @property
    def reward(self) -> float:
        """R where a rubric gave it, else 1.0 if correct and 0.0 if not (RL-04)."""
        if self.score is not None:
            return self.score
        return 1.0 if self.correct else 0.0


NOT_SUBMITTED = Verdict(format_valid=False, correct=False, answer=None, reason="nothing was submitted")
"""The verdict of an episode without a submission: reward 0 (RL-04)."""
