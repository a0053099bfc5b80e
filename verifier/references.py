"""The private answers of a release: read, checked against their tasks, and kept from leaving (EVID-02).

Only the grading side imports this module: the grader's process (`verifier/grader_child.py`), the comparison,
and the check of a whole release (`verifier/verification.py`). A `Reference` refuses to be shown, copied or
written anywhere. Needs no pydantic, as the grader's process does not.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast

import orjson

from verifier.answer_format import AnswerFormat
from verifier.answers import LETTERS, parse, read_content
from verifier.rubric import Rubric, read_rubric
from verifier.rubric_checks import RubricError
from verifier.script import Script, read_script

_LETTERS: Final = frozenset(LETTERS)


class Gradable(Protocol):
    """What grading needs to know of a task; `verifier.task.Task` is one."""

    @property
    def id(self) -> str: ...
    @property
    def answer_format(self) -> AnswerFormat: ...
    @property
    def options(self) -> Sequence[str]: ...
    @property
    def checked_by(self) -> Sequence[str]: ...


_Task = TypeVar("_Task", bound=Gradable)


class ReferenceError(Exception):
    """The reference file is malformed or does not fit the tasks. The message never holds an answer."""


class Reference:
    """The right answer to one task and how near an answer must come.

    Deliberately neither a dataclass nor a pydantic model: serialisers write those unasked.
    """

    __slots__ = ("absolute", "answer", "relative", "rubric", "script", "task", "unit")

    task: str
    answer: str
    """In the form a perfect solver would put between the tags; empty only where a rubric does without it."""
    absolute: float
    """Numbers: largest accepted distance, in the question's unit; at least 0."""
    relative: float
    """Numbers: largest accepted distance as a share of the right value; at least 0."""
    unit: str
    """Numbers: a unit that may follow the value; none may when empty."""
    rubric: Rubric | None
    """Decides in place of the answer alone."""
    script: Script | None
    """How the rubric's script criteria are run."""

    def __init__(
        self,
        *,
        task: str,
        answer: str = "",
        absolute: float = 0.0,
        relative: float = 0.0,
        unit: str = "",
        rubric: Rubric | None = None,
        script: Script | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "task", task)
        put(self, "answer", answer)
        put(self, "absolute", absolute)
        put(self, "relative", relative)
        put(self, "unit", unit)
        put(self, "rubric", rubric)
        put(self, "script", script)

    @classmethod
    def from_json(cls, line: bytes) -> "Reference":
        """Raises ReferenceError, which names the field and never a value.

        A line's `canary` is checked and not kept: a scan for canaries then finds what was copied, not us. Nor
        is `withheld`, what a source keeps back and no grading needs (a key passage, the papers' addresses).
        """
        try:
            row: Any = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ReferenceError(f"not JSON, from character {error.pos} on") from None
        if not isinstance(row, dict):
            raise ReferenceError("a reference is a JSON object")
        fields = cast("dict[str, Any]", row)
        if "task" not in fields:
            raise ReferenceError("task: a reference has this field")
        if "answer" not in fields and "rubric" not in fields:
            raise ReferenceError("answer: a reference has this field")
        read: dict[str, Any] = {}
        for name, value in fields.items():
            if (reader := _FIELDS.get(name)) is None:
                raise ReferenceError(f"{name}: a reference has no such field")
            read[name] = reader(name, value)
        read.pop("canary", None)
        read.pop("withheld", None)
        return cls(**read)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a reference does not change")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a reference does not change")

    def __repr__(self) -> str:
        return "Reference(private)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a reference does not leave the grader's process")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ReferenceError(f"{name}: a text belongs here")
    return value


def _some_text(name: str, value: object) -> str:
    if not (text := _text(name, value)):
        raise ReferenceError(f"{name}: it is empty")
    return text


def _texts(name: str, value: object) -> None:
    """Checks texts, or lists of texts, by name."""
    fields = cast("dict[str, object]", value).values() if isinstance(value, dict) else (None,)
    lists = [cast("list[object]", own) if isinstance(own, list) else [own] for own in fields]
    if not all(isinstance(text, str) for own in lists for text in own):
        raise ReferenceError(f"{name}: texts or lists of texts by name belong here")


def _distance(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReferenceError(f"{name}: a number belongs here")
    if not (value >= 0 and math.isfinite(value)):
        raise ReferenceError(f"{name}: it must be finite and at least 0")
    return float(value)


def _rubric(name: str, value: object) -> Rubric:
    try:
        return read_rubric(value)
    except RubricError as error:
        raise ReferenceError(f"{name}: {error}") from None


def _script(name: str, value: object) -> Script:
    try:
        return read_script(value)
    except RubricError as error:
        raise ReferenceError(f"{name}: {error}") from None


_FIELDS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "task": _some_text,
    "answer": _some_text,
    "absolute": _distance,
    "relative": _distance,
    "unit": _text,
    "rubric": _rubric,
    "script": _script,
    "canary": _text,
    "withheld": _texts,
}


def pair_references(path: Path, tasks: Iterable[_Task]) -> Iterator[tuple[_Task, Reference]]:
    """Each task with its reference, both in order of id; nothing is held in memory.

    Raises ReferenceError, naming file, line and task, unless there is exactly one readable reference a task.
    """
    with path.open("rb") as handle:
        yield from pair_lines(f"{path.parent.name}/{path.name}", handle, tasks)


def pair_lines(
    name: str, lines: Iterable[bytes], tasks: Iterable[_Task]
) -> Iterator[tuple[_Task, Reference]]:
    """`pair_references` for the lines of a file of that name."""
    last = ""
    stated = _read(name, lines)
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


def _read(name: str, lines: Iterable[bytes]) -> Iterator[tuple[str, Reference]]:
    for number, line in enumerate(lines, 1):
        where = f"{name} line {number}"
        try:
            yield where, Reference.from_json(line)
        except ReferenceError as error:
            raise ReferenceError(f"{where}: {error}") from None


def _refuse_stray(reference: Reference, where: str, expected: str, last: str) -> None:
    if reference.task == last:
        raise ReferenceError(f"{where}: second reference of task {last!r}")
    if reference.task < last:
        raise ReferenceError(f"{where}: references are in order of id, and {reference.task!r} comes too late")
    if reference.task != expected:
        raise ReferenceError(f"{where}: reference of an unknown task {reference.task!r}")


def check_reference(reference: Reference, task: Gradable, where: str) -> None:
    """Raises ReferenceError, which holds no answer, unless the reference reads in the task's format."""
    _check_rubric(reference, task, where)
    if reference.rubric is not None and not reference.answer:
        return
    # Only what holds a `<` could spell a tag; the content alone is read much faster in a large release.
    whole, alone = f"<answer>{reference.answer}</answer>", reference.answer
    read, text = (parse, whole) if "<" in alone else (read_content, alone)
    stated = read(task.answer_format, text, task.options)
    reason = stated.reason
    if task.answer_format is AnswerFormat.LETTER and reference.answer not in _LETTERS:
        reason = f"{reason}, and not one capital letter" if reason != "ok" else "not one capital letter"
    elif task.answer_format is AnswerFormat.RSID and stated.answer and not stated.answer.islower():
        reason = "an rsID is written in lower case"
    elif stated.unit:
        reason = "its unit has a field of its own"
    if reason != "ok":
        raise ReferenceError(
            f"{where}: the reference of task {task.id!r} is not a {task.answer_format} ({reason})"
        )


def _check_rubric(reference: Reference, task: Gradable, where: str) -> None:
    """The rubric can be measured, and the public task says by whom."""
    rubric = reference.rubric
    has_own_checks = rubric is not None or reference.script is not None or task.checked_by
    if not has_own_checks and task.answer_format is not AnswerFormat.FILES:
        return
    problem = ""
    if rubric is None:
        if task.answer_format is AnswerFormat.FILES or reference.script is not None:
            problem = "needs a rubric with a script criterion"
    elif not reference.answer and any(item.check.kind == "answer" for item in rubric.criteria):
        problem = "has a criterion on the answer and no answer"
    elif rubric.needs_script != (reference.script is not None):
        problem = "has a script criterion without script, or a script without criterion"
    elif task.answer_format is AnswerFormat.FILES and not rubric.needs_script:
        problem = "needs a script criterion, for its files are what is checked"
    checkers = {"judge"} if rubric is not None and rubric.needs_judge else set[str]()
    checkers |= {"script"} if rubric is not None and rubric.needs_script else set[str]()
    if not problem and checkers != set(task.checked_by):
        problem = f"is checked by {', '.join(sorted(checkers)) or 'nobody'} and checked_by says otherwise"
    if problem:
        raise ReferenceError(f"{where}: task {task.id!r} {problem}")
