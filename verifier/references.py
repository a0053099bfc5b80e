"""The private answers of a release. Only `verifier/grade.py` imports this module (information barrier).

Must not be importable from anything that builds evidence, prompts or reports.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verifier.answers import LETTERS, parse
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
    ordered = (tasks[task_id] for task_id in sorted(tasks))
    return {task.id: reference for task, reference in pair_references(path, ordered)}


def pair_references(path: Path, tasks: Iterable[Task]) -> Iterator[tuple[Task, Reference]]:
    """Each task with its reference, both in order of id; nothing is held in memory.

    Raises ReferenceError, naming file, line and task, unless there is exactly one readable reference a task.
    """
    name, last = f"{path.parent.name}/{path.name}", ""
    stated = _read(path)
    for task in tasks:
        where, reference = next(stated, (name, None))
        if reference is None:
            raise ReferenceError(f"{name}: no reference for task {task.id!r}")
        if reference.task > task.id:
            raise ReferenceError(f"{where}: no reference for task {task.id!r}, but for {reference.task!r}")
        _refuse_stray(reference, where, task.id, last)
        check_reference(reference, task, where)
        last = task.id
        yield task, reference
    for where, reference in stated:
        _refuse_stray(reference, where, "", last)


def _read(path: Path) -> Iterator[tuple[str, Reference]]:
    name = f"{path.parent.name}/{path.name}"
    with path.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            where = f"{name} line {number}"
            try:
                yield where, Reference.model_validate_json(line)
            except ValidationError as error:
                raise ReferenceError(f"{where}: {error.errors(include_input=False)[0]['msg']}") from None


def _refuse_stray(reference: Reference, where: str, expected: str, last: str) -> None:
    if reference.task == last:
        raise ReferenceError(f"{where}: second reference of task {last!r}")
    if reference.task < last:
        raise ReferenceError(f"{where}: references are in order of id, and {reference.task!r} comes too late")
    if reference.task != expected:
        raise ReferenceError(f"{where}: reference of an unknown task {reference.task!r}")


def check_reference(reference: Reference, task: Task, where: str) -> None:
    """Raises ReferenceError, which holds no answer, unless the reference reads in the task's format."""
    stated = parse(task.answer_format, f"<answer>{reference.answer}</answer>", task.options)
    exact_letter = task.answer_format is not AnswerFormat.LETTER or reference.answer in LETTERS
    if not (stated.format_valid and exact_letter) or stated.unit:
        raise ReferenceError(
            f"{where}: the reference of task {task.id!r} is not a {task.answer_format} ({stated.reason})"
        )
