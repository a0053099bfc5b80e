"""Starts training and validation as child processes and follows them. Needs no torch.

Cancelling the caller ends the child: first by SIGTERM, so that it closes its sandboxes, then by force. Must
not know what the child computes.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import orjson

from rl import forked
from rl.embedded.memory import ALLOCATOR
from rl.errors import ExportRefused, TrainingError
from rl.forked import ForkedProcess
from rl.job_spec import LOG, PROGRESS, RESULT, EpisodeSetup, Job, JobResult, ValidationJob, ValidationResult
from rl.lock import require_free
from rl.process import EXPECTED, PARENT_VARIABLE

OnProgress = Callable[[Mapping[str, Any]], None]
_POLL_SECONDS: Final = 0.2
_GRACE_SECONDS: Final = 20.0
_LOG_LINES: Final = 15
_LOCK_SECONDS: Final = 5.0
_SAID: Final = tuple(f"{kind.__name__}: " for kind in EXPECTED)


async def run_job(job: Job, on_progress: OnProgress | None = None, *, fork: bool = False) -> JobResult:
    """Train in a child process. Events of `progress.jsonl` reach `on_progress` as they come.

    Raises `TrainingError` with the end of the child's log when it fails. A half-finished folder is begun
    anew, for unsaved updates are never counted (CONT-03). `fork`: see `rl.forked`.
    """
    module = "rl.embedded.job" if job.skyrl is None else "rl.skyrl.job"
    return JobResult.model_validate_json(await _run_child(module, job, on_progress, fork))


async def validate_export(
    job: ValidationJob, on_progress: OnProgress | None = None, *, fork: bool = False
) -> ValidationResult:
    """Validate in a child process. Raises `ExportRefused` with the named reason, or `TrainingError`."""
    result = ValidationResult.model_validate_json(await _run_child("rl.validate", job, on_progress, fork))
    if result.refused is not None:
        raise ExportRefused(result.refused, result.detail)
    return result


def prepare_forks() -> None:
    """Do the imports of forked jobs in the background, so that the first one finds them done."""
    forked.prepare(_environment())


async def _run_child(module: str, setup: EpisodeSetup, on_progress: OnProgress | None, fork: bool) -> bytes:
    folder = setup.folder.absolute()
    if folder.exists():
        # What a killed trainer left is begun anew; one that still lives keeps its folder.
        await asyncio.to_thread(require_free, folder, _LOCK_SECONDS)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    job = folder / "job.json"
    job.write_text(setup.model_dump_json(indent=2))
    follower = _Follower(folder / PROGRESS, on_progress)
    child = await _start(module, job, fork)
    try:
        ended = asyncio.ensure_future(child.wait())
        while not ended.done():
            await asyncio.wait([ended], timeout=_POLL_SECONDS)
            follower.read()
        if child.returncode == 0 and (folder / RESULT).exists():
            return (folder / RESULT).read_bytes()
        raise TrainingError(f"{module} ended with status {child.returncode}: {_tail(folder / LOG)}")
    finally:
        await asyncio.shield(_end(child))


async def _start(module: str, job: Path, fork: bool) -> "asyncio.subprocess.Process | ForkedProcess":
    log = job.with_name(LOG)
    if fork:
        log.touch()
        return await asyncio.to_thread(ForkedProcess.start, module, job, log, _environment())
    with log.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            str(job),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **_environment()},
            # Ctrl-C is the parent's to hear; it ends its jobs in good order.
            process_group=0,
        )


def _environment() -> dict[str, str]:
    """What a job's environment has beside the parent's."""
    root = str(Path(__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**ALLOCATOR, "PYTHONPATH": search, PARENT_VARIABLE: str(os.getpid())}


async def _end(child: "asyncio.subprocess.Process | ForkedProcess") -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            await asyncio.wait_for(child.wait(), _GRACE_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if isinstance(child, asyncio.subprocess.Process):
        # It led a group: what it started and could not end itself, killed or crashed, ends now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    for number in range(len(lines) - 1, -1, -1):
        # A job that knew why it ended has said so last, after whatever its libraries narrated.
        if lines[number].startswith(_SAID):
            return "\n".join(lines[number:][:_LOG_LINES])
    return "\n".join(lines[-_LOG_LINES:]) or "it wrote no log"


class _Follower:
    """Reads the whole lines that were added to a progress file since the last look."""

    def __init__(self, path: Path, on_progress: OnProgress | None) -> None:
        self._path = path
        self._on_progress = on_progress
        self._offset = 0

    def read(self) -> None:
        if self._on_progress is None or not self._path.exists():
            return
        with self._path.open("rb") as handle:
            handle.seek(self._offset)
            data = handle.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._on_progress(cast("dict[str, Any]", orjson.loads(line)))
