"""The project's own simple format: one JSON object a line, a question and its answer together.

    {"id": "q1", "family": "metals", "question": "Symbol of iron?", "format": "symbol", "answer": "Fe"}

The fields are those of `Entry`; `docs/releases.md` shows a whole file. The answer goes to the private half.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verifier.importers.base import MAX_ROW_BYTES, Problem, Row, compose_prompt, letter_options
from verifier.importers.texts import numbered_lines
from verifier.layout import ReleaseError, describe, is_plain
from verifier.rubric import read_rubric
from verifier.rubric_checks import RubricError
from verifier.task import AnswerFormat, Question, Split


class Entry(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: str = Field(min_length=1)
    """One plain file name, unique in the release."""
    question: str = Field(min_length=1)
    """The question alone: options and the form of the answer are added to it."""
    answer: str = ""
    """Private. For options: the text of the right one. Needed unless a rubric does without it."""
    rubric: dict[str, Any] | None = None
    """Private. Weighted criteria that decide in place of the answer alone; `docs/rubrics.md`."""
    options: tuple[str, ...] = ()
    """The wrong options; with them the format is `letter`, and the order is by digest."""
    format: AnswerFormat = AnswerFormat.TEXT
    family: str = "tasks"
    subtopic: str = "all"
    group: str = ""
    """Material group; the id if empty."""
    split: Split | None = None
    files: tuple[str, ...] = ()
    """Public files of the task, as paths beside the JSONL file."""
    absolute: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    relative: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    unit: str = ""
    source: str = ""
    licence: str = ""
    canary: str = ""


class JsonLines:
    """A JSONL file opened for import."""

    name: ClassVar = "jsonl"
    version: ClassVar = 1

    def __init__(self, path: Path, *, licence: str, origin: str = "", no_training: bool = False) -> None:
        """`licence` is the file's own, as SPDX. Raises ReleaseError when there is no such file."""
        if not path.is_file():
            raise ReleaseError(f"{path}: no such file; name a JSONL file")
        self._path = path
        self.root = path.parent
        self.licence = licence
        self.origin = origin or f"jsonl {path.name}"
        self.notes: Sequence[str] = ()
        self.no_training = no_training

    def files(self) -> Sequence[Path]:
        return (self._path,)

    def rows(self) -> Iterator[Row | Problem]:
        """One row a line; empty lines are passed over."""
        for number, line in numbered_lines(self._path):
            where = f"{self._path.name} line {number}"
            if line is None:
                yield Problem("malformed-row", where, f"longer than {MAX_ROW_BYTES >> 20} MiB")
            elif not line.isspace():
                yield self._row(line, where)

    def _row(self, line: bytes, where: str) -> Row | Problem:
        try:
            entry = Entry.model_validate_json(line)
            return self._task(entry, where)
        except ValidationError as error:
            # A message of pydantic's may hold the input; a line holds the answer.
            return Problem("malformed-row", where, describe(error))
        except ValueError as error:
            kind = "duplicate-options" if "same text" in str(error) else "malformed-row"
            return Problem(kind, where, str(error))

    def _task(self, entry: Entry, where: str) -> Row:
        if entry.options and "format" in entry.model_fields_set and entry.format is not AnswerFormat.LETTER:
            raise ValueError(f"options belong to the format letter, not {entry.format}")
        if not entry.options and entry.format is AnswerFormat.LETTER:
            raise ValueError("the format letter needs options: give the wrong ones as `options`")
        judged = _check_rubric(entry)
        options, answer, form = tuple[str, ...](), entry.answer, entry.format
        if entry.options:
            options, answer = letter_options(entry.answer, entry.options, entry.id)
            form = AnswerFormat.LETTER
        for name in entry.files:
            if not is_plain(name):
                raise ValueError(f"its file {name!r} is no plain path beside the JSONL file")
        paths = {Path(name).name: self.root / name for name in entry.files}
        if len(paths) != len(entry.files):
            raise ValueError("two of its files have the same name")
        question = Question(
            id=entry.id,
            family=entry.family,
            subtopic=entry.subtopic,
            material_group=entry.group or entry.id,
            prompt=compose_prompt(entry.question, options, form),
            options=options,
            answer_format=form,
            files=tuple(sorted(paths)),
            source=entry.source or where,
            licence=entry.licence,
            canary=entry.canary,
            checked_by=("judge",) if judged else (),
        )
        return Row(question, _reference(entry, answer), where, entry.split, dict(paths))


def _check_rubric(entry: Entry) -> bool:
    """Whether a judge decides part of it. ValueError, without anything of the rubric, if it cannot be."""
    if entry.format is AnswerFormat.FILES:
        raise ValueError("the format files needs a check script: such tasks are imported as Harbor tasks")
    if entry.rubric is None:
        if not entry.answer:
            raise ValueError("answer: it is missing or empty")
        return False
    try:
        rubric = read_rubric(entry.rubric)
    except RubricError as error:
        raise ValueError(f"rubric: {error}") from None
    if rubric.needs_script:
        raise ValueError("rubric: a script criterion needs a script: such tasks are imported as Harbor tasks")
    return rubric.needs_judge


def _reference(entry: Entry, answer: str) -> dict[str, Any]:
    said = {
        "absolute": entry.absolute,
        "relative": entry.relative,
        "unit": entry.unit,
        "rubric": entry.rubric,
    }
    return {"answer": answer} | {name: value for name, value in said.items() if value}
