"""The grader's own process: the one place of a run that reads references (EVID-02).

`python -m verifier.grader_child ROOT REFERENCES_DIGEST TASKS_DIGEST PARENT`, started by
`verifier/grader_process.py` with its end of a socket pair as standard input. It loads, says that it is ready
or why not, and answers one frame with one frame until the other end closes or the parent is gone. It prints
nothing, for a traceback may hold an answer. Lean imports keep a start short.
"""

import gc
import hashlib
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from verifier.answer_format import AnswerFormat
from verifier.answers import GRADING_VERSION
from verifier.comparison import grade_text
from verifier.errors import GraderLost
from verifier.grader_frames import FrameError, receive, send
from verifier.outside import Measured
from verifier.references import Reference, ReferenceError, pair_lines
from verifier.rubric_checks import RubricError
from verifier.rubric_grading import grade_by_rubric, needs

_WATCH_SECONDS: Final = 2.0
_REFERENCES: Final = "private/references.jsonl"
_TASKS: Final = "public/tasks.jsonl"


class PublicTask(NamedTuple):
    """What grading needs of a task."""

    id: str
    answer_format: AnswerFormat
    options: tuple[str, ...]
    checked_by: tuple[str, ...] = ()


class Graded(NamedTuple):
    """One task with its reference."""

    task: PublicTask
    reference: Reference


def load(root: Path, references_digest: str, tasks_digest: str) -> dict[str, Graded]:
    """Every task by id. Raises ReferenceError or OSError; the message holds no answer."""
    found: dict[str, Graded] = {}
    states = [hashlib.sha256(), hashlib.sha256()]
    with (root / _TASKS).open("rb") as tasks, (root / _REFERENCES).open("rb") as references:
        public = _tasks(_hashed(tasks, states[0].update))
        for task, reference in pair_lines(_REFERENCES, _hashed(references, states[1].update), public):
            found[task.id] = Graded(task, reference)
    for name, state, listed in zip(
        (_TASKS, _REFERENCES), states, (tasks_digest, references_digest), strict=True
    ):
        if f"sha256:{state.hexdigest()}" != listed:
            raise ReferenceError(f"{name} was changed after freezing")
    return found


def _hashed(lines: Iterable[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    for line in lines:
        update(line)
        yield line


def _tasks(lines: Iterable[bytes]) -> Iterator[PublicTask]:
    for number, line in enumerate(lines, 1):
        try:
            row: dict[str, Any] = orjson.loads(line)
            form = AnswerFormat(row["answer_format"])
            yield PublicTask(row["id"], form, tuple(row.get("options", ())), tuple(row.get("checked_by", ())))
        except (ValueError, TypeError, LookupError) as error:
            raise ReferenceError(f"{_TASKS} line {number}: {type(error).__name__}") from None


def answer(known: dict[str, Graded], request: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """`grade` ID TEXT (MEASURED) gives `verdict` JSON; `needs` ID TEXT gives `needs` JSON, empty for nothing.

    Both give `unknown` for an unknown id; `lost` and the reason where something was not measured.
    """
    kind, name, text, *rest = request
    found = known.get(name.decode("utf-8", "surrogatepass"))
    if found is None:
        return (b"unknown",)
    submission = (found.task.answer_format, found.task.options, found.reference)
    submitted, rubric = text.decode("utf-8", "surrogatepass"), found.reference.rubric
    if kind == b"needs":
        wanted = needs(*submission, submitted)
        return b"needs", wanted.to_json() if wanted is not None else b""
    if rubric is None:
        return b"verdict", orjson.dumps(grade_text(*submission, submitted)._asdict())
    measured = Measured.from_json(rest[0]) if rest else Measured()
    try:
        return b"verdict", orjson.dumps(grade_by_rubric(*submission, rubric, submitted, measured))
    except (GraderLost, RubricError) as error:  # they name criteria and tell nothing else of a rubric
        return b"lost", str(error).encode("utf-8", "replace")


def serve(connection: socket.socket, known: dict[str, Graded], parent: int) -> None:
    """Answer until the other end closes, or the parent is gone and another process holds its end."""
    while True:
        if not select.select([connection], [], [], _WATCH_SECONDS)[0]:
            if os.getppid() != parent:
                return
            continue
        try:
            request = receive(connection)
        except FrameError:
            return
        try:
            reply = answer(known, request)
        except Exception as error:
            # Its kind and place alone: the message may quote a reference.
            reply = b"failed", _place(error).encode()
        try:
            send(connection, reply)
        except FrameError:
            return


def _place(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}{where}"


def main(arguments: list[str]) -> int:
    """Serve the socket that is standard input."""
    root, references_digest, tasks_digest, parent = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear: it still needs verdicts.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # A dump would hold every reference.
    with socket.socket(fileno=os.dup(0)) as connection:
        gc.disable()  # Nothing that is loaded is ever let go of: there is nothing to look for.
        try:
            known = load(Path(root), references_digest, tasks_digest)
        except (OSError, ReferenceError) as error:
            send(connection, (b"refused", str(error).encode("utf-8", "replace")))
            return 1
        gc.freeze()
        gc.enable()
        send(connection, (b"ready", str(GRADING_VERSION).encode()))
        serve(connection, known, int(parent))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Exception:
        sys.exit(1)
