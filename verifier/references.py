"""The private answers of a release. Only `verifier/grade.py` imports this module (information barrier).

Must not be importable from anything that builds evidence, prompts or reports.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verifier.answers import LETTERS, parse
from verifier.layout import json_lines
from verifier.task import AnswerFormat, Task


class Reference(BaseModel):
    """The right answer to one task and how near an answer must come."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    task: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    """In the form a perfect solver would put between the tags."""
    absolute: float = Field(default=0.0, ge=0)
    """Numbers: largest accepted distance, in the question's unit."""
    relative: float = Field(default=0.0, ge=0)
    """Numbers: largest accepted distance as a share of the right value."""
    unit: str = ""
    """Numbers: a unit that may follow the value; none may when empty."""
    canary: str = ""
    """A string that must never be seen outside this file; a scan for it proves the barrier."""


class ReferenceError(Exception):
    """The reference file is malformed or does not fit the tasks. The message never holds an answer."""


def load_references(path: Path, tasks: Mapping[str, Task]) -> dict[str, Reference]:
    """Read the references of exactly these tasks. Raises ReferenceError naming file, line and task."""
    found: dict[str, Reference] = {}
    for number, line in enumerate(json_lines(path), 1):
        where = f"{path.parent.name}/{path.name} line {number}"
        try:
            reference = Reference.model_validate_json(line)
        except ValidationError as error:
            raise ReferenceError(f"{where}: {error.errors(include_input=False)[0]['msg']}") from None
        if reference.task not in tasks:
            raise ReferenceError(f"{where}: reference of an unknown task {reference.task!r}")
        if reference.task in found:
            raise ReferenceError(f"{where}: second reference of task {reference.task!r}")
        _check(reference, tasks[reference.task], where)
        found[reference.task] = reference
    missing = sorted(tasks.keys() - found.keys())
    if missing:
        raise ReferenceError(f"{path.parent.name}/{path.name}: no reference for task {missing[0]!r}")
    return found


def _check(reference: Reference, task: Task, where: str) -> None:
    stated = parse(task.answer_format, f"<answer>{reference.answer}</answer>", task.options)
    exact_letter = task.answer_format is not AnswerFormat.LETTER or reference.answer in LETTERS
    if not (stated.format_valid and exact_letter) or stated.unit:
        raise ReferenceError(
            f"{where}: the reference of task {task.id!r} is not a {task.answer_format} ({stated.reason})"
        )
