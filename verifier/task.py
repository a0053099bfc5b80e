"""The public half of a task and the verdict on an answer. References live in `verifier/references.py`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from verifier.answer_format import AnswerFormat as AnswerFormat

Split = Literal["train", "val", "test"]


def _is_empty(value: str) -> bool:
    # Written only where it says something: releases frozen before the field existed keep their bytes.
    return not value


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

    @property
    def reward(self) -> float:
        """1.0 if correct, else 0.0 (RL-04)."""
        return 1.0 if self.correct else 0.0


NOT_SUBMITTED = Verdict(format_valid=False, correct=False, answer=None, reason="nothing was submitted")
"""The verdict of an episode without a submission: reward 0 (RL-04)."""
