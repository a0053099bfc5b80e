"""What the tests of the grader's process ask of it and of the system."""

import time
from pathlib import Path

from verifier.grade import Grader
from verifier.release import Release
from verifier.task import AnswerFormat

ROOT = Path(__file__).parents[2]


def a_task(release: Release, form: AnswerFormat = AnswerFormat.TEXT) -> str:
    return next(task.id for task in release.tasks if task.answer_format is form)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def pid_of(grader: Grader) -> int:
    assert grader.pid is not None
    return grader.pid
