"""Grading: a submitted text against the private reference of its task (DATA-04, EVID-02).

`Grader` is what everybody may use. It hands out verdicts and holds no reference: they are read in a process
of its own (`verifier/grader_child.py`), which this module must not import. A verdict carries a short reason
and never the reference.
"""

import asyncio
import os
import threading
from types import TracebackType
from typing import Final, Self

from verifier.answers import GRADING_VERSION
from verifier.errors import GraderLost as GraderLost
from verifier.grader_frames import FrameError
from verifier.grader_process import Frame, GraderProcess, GraderRefused
from verifier.layout import REFERENCES, TASKS
from verifier.outside import Measured, Needs
from verifier.release import Release, ReleaseError
from verifier.task import Verdict

_START_SECONDS: Final = 300.0
_TRIES: Final = 2


class Grader:
    """Grades texts for one release. `with Grader(release) as grader: grader.grade(...)`.

    The process starts when it is first needed, or with `launch` or `start`. One that dies or hangs is
    replaced, once within a request. A fork of this process gets a process of its own. Without `close` it ends
    with this object or with its owner.
    """

    def __init__(self, release: Release, *, seconds: float = 30.0) -> None:
        """`seconds`: how long one process may take for one verdict."""
        self._release = release
        self._seconds = seconds
        self._closed = False
        self.identity: Final = release.verifier_identity()
        """Digest of the grading code's version and the reference file."""
        self._begin()

    def launch(self) -> None:
        """Start the process and return at once; what goes wrong is told by the next call."""
        try:
            self._running()
        except FrameError:
            self._drop(None)

    def start(self) -> Self:
        """Return when it can grade. Raises GraderLost, or ReleaseError: references and tasks do not fit."""
        problems: list[str] = []
        while self._ready(problems) is None:
            self._give_up_after(problems)
        return self

    def grade(self, task_id: str, text: str, measured: Measured | None = None) -> Verdict:
        """Judge one text, whatever it holds. Raises KeyError for an unknown task, and what `start` raises.

        `measured` is what `needs_aside` asked for; GraderLost where it is missing or no share.
        """
        request, problems = _request(b"grade", task_id, text, measured), list[str]()
        while True:
            process = self._ready(problems)
            if process is not None:
                try:
                    return _verdict(task_id, process.ask(request, self._seconds))
                except FrameError as error:
                    self._drop(process)
                    problems.append(str(error))
            self._give_up_after(problems)

    async def grade_aside(self, task_id: str, text: str, measured: Measured | None = None) -> Verdict:
        """As `grade`, while the event loop goes on."""
        return _verdict(task_id, await self._asked_aside(_request(b"grade", task_id, text, measured)))

    async def needs_aside(self, task_id: str, text: str) -> Needs | None:
        """What judge and script must answer before the text can be graded; None when nothing."""
        wanted = _part(task_id, b"needs", await self._asked_aside(_request(b"needs", task_id, text)))
        return Needs.from_json(wanted) if wanted else None

    async def _asked_aside(self, request: Frame) -> Frame:
        problems = list[str]()
        while True:
            process = self._process_if_ready() or await asyncio.to_thread(self._ready, problems)
            if process is not None:
                try:
                    return await process.ask_aside(request, self._seconds)
                except FrameError as error:
                    self._drop(process)
                    problems.append(str(error))
            self._give_up_after(problems)

    def close(self) -> None:
        """End the process. Idempotent; nothing can be graded afterwards."""
        self._closed = True
        self._drop(None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process that grades now."""
        process = self._current()
        return None if process is None else process.pid

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._process: GraderProcess | None = None

    def _current(self) -> GraderProcess | None:
        if self._owner != os.getpid():
            # A fork: the process, its socket and the lock's state are the parent's.
            self._begin()
        return self._process

    def _process_if_ready(self) -> GraderProcess | None:
        process = self._current()
        return process if process is not None and process.ready and not self._closed else None

    def _running(self) -> GraderProcess:
        self._current()
        with self._lock:
            if self._closed:
                raise GraderLost("the grader was closed")
            if self._process is None:
                payload = self._release.header.payload
                self._process = GraderProcess(
                    self._release.root, payload[REFERENCES].digest, payload[TASKS].digest
                )
            return self._process

    def _ready(self, problems: list[str]) -> GraderProcess | None:
        """A process that can grade; None, with a problem more, if it broke at the start."""
        process = None
        try:
            process = self._running()
            version = process.wait_until_ready(_START_SECONDS)
        except GraderRefused as refused:
            self._drop(process)
            raise ReleaseError(f"release {self._release.name}: {refused}") from None
        except FrameError as error:
            self._drop(process)
            problems.append(str(error))
            return None
        if version != str(GRADING_VERSION):
            self._drop(process)
            raise GraderLost(f"the grader's code is of version {version}, this process of {GRADING_VERSION}")
        return process

    def _give_up_after(self, problems: list[str]) -> None:
        if len(problems) >= _TRIES:
            raise GraderLost(f"the grader's process {problems[-2]}, and the one after it {problems[-1]}")

    def _drop(self, broken: GraderProcess | None) -> None:
        """End the current process; of several that saw `broken` fail, only the first does."""
        current = self._current()
        with self._lock:
            if current is None or (broken is not None and current is not broken):
                return
            self._process = None
        current.end()


def _request(kind: bytes, task_id: str, text: str, measured: Measured | None = None) -> Frame:
    named = (kind, task_id.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass"))
    return named if measured is None else (*named, measured.to_json())


def _verdict(task_id: str, answer: Frame) -> Verdict:
    return Verdict.model_validate_json(_part(task_id, b"verdict", answer))


def _part(task_id: str, kind: bytes, answer: Frame) -> bytes:
    match answer:
        case (found, part) if found == kind:
            return part
        case (b"unknown",):
            raise KeyError(task_id)
        case (b"lost", why):
            raise GraderLost(why.decode("utf-8", "replace"))
        case (b"failed", why):
            raise GraderLost(f"the grader failed: {why.decode('utf-8', 'replace')}")
        case _:
            raise GraderLost("the grader sent what was not asked for")
