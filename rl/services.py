"""Opens what a training or validation process needs for episodes: engine, sandboxes, grader, broker.

Must not know updates or checks. Imports torch through the engine.
"""

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.broker import Broker
from broker.engine.engine import EmbeddedEngine
from broker.limiter import Limiter
from broker.model import TaskModel
from broker.outside import runtime_for
from broker.sandbox.base import SandboxFactory
from broker.sandbox.factory import open_factory
from broker.sandbox.pool import pooled
from broker.template import ChatTemplate
from rl.job_spec import PROGRESS, SCRIPTED_ROLE, EpisodeSetup, Job
from verifier.grade import Grader
from verifier.judge import Judge
from verifier.release import find

if TYPE_CHECKING:
    from broker.inference import InferenceService


def open_engine(setup: EpisodeSetup, model_dir: Path, *, exact: bool = True) -> EmbeddedEngine:
    """The engine on a model folder, long enough for the budgets' context; float32 if `exact`."""
    return EmbeddedEngine(
        model_dir,
        device=setup.device,
        max_batch=setup.max_batch,
        max_length=setup.budgets.context_tokens,
        threads=setup.threads,
        exact=exact,
    )


def open_sandboxes(setup: EpisodeSetup) -> SandboxFactory:
    runtime = runtime_for(setup.shell, packages=setup.sandbox_packages, cache=setup.runtime_cache)
    return pooled(open_factory(setup.sandbox, runtime, setup.sandbox_cache), setup.sandbox_pool)


@asynccontextmanager
async def open_broker(
    setup: EpisodeSetup, engine: TaskModel, model_dir: Path, sandboxes: SandboxFactory
) -> AsyncGenerator[Broker]:
    """A broker whose task model is the engine of this process; closed at the end, whatever happens."""
    release = find(setup.release)
    grader = Grader(release).start()
    scripted = _scripted(setup, model_dir)
    broker = Broker(
        model=engine if scripted is None else await scripted.start(),
        template=ChatTemplate.load(model_dir),
        sandboxes=sandboxes,
        grader=grader,
        release=release,
        budgets=setup.budgets,
        guidance=setup.guidance,
        limiter=Limiter(setup.concurrency),
        libraries=setup.libraries,
        judge=_judge(setup),
    )
    try:
        yield broker
    finally:
        await broker.close()
        grader.close()
        if scripted is not None:
            await scripted.stop()


def _judge(setup: EpisodeSetup) -> Judge | None:
    if not setup.judge:
        return None
    # Here, so that an ordinary job never loads the HTTP client.
    from broker.judge import JudgeSettings, open_judge

    return open_judge(JudgeSettings.model_validate(setup.judge))


def _scripted(setup: EpisodeSetup, model_dir: Path) -> "InferenceService | None":
    if not setup.scripted_server:
        return None
    # Here, so that an ordinary job never loads the HTTP client.
    from broker.inference import InferenceService, InferenceSpec

    os.environ[SCRIPTED_ROLE] = "training" if isinstance(setup, Job) else "validation"
    return InferenceService(InferenceSpec(kind="command", command=setup.scripted_server), model_dir)


class Progress:
    """Appends events to the job's progress file, one JSON object a line, each line whole."""

    def __init__(self, folder: Path) -> None:
        self._handle = (folder / PROGRESS).open("ab", buffering=0)

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        self._handle.write(json.dumps({"event": event, **fields}).encode() + b"\n")

    def close(self) -> None:
        self._handle.close()


def write_atomically(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)
