"""`python -m rl.skyrl.job JOB.json`: one RL stage with SkyRL as the trainer, on the user's Ray or on one of
its own.

Episodes run here, in the main thread's event loop; SkyRL runs in a thread with a loop of its own, where it
may block on Ray without holding up an episode or a signal. Then its export is found, repaired and scored,
and `result.json` is left, or nothing. Must not know handoff, claims or Prefect.
"""

import asyncio
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.attempt import Lost
from broker.broker import Broker
from broker.engine.default_model import model_digest
from broker.gpu_memory import MemoryWatch
from broker.model import Completion
from broker.record import GradedEpisode
from broker.template import ChatTemplate
from rl.embedded.memory import ALLOCATOR
from rl.errors import TrainingError
from rl.export import target_dtype
from rl.job_spec import EXPORT, PANEL, RESULT, Job, JobResult, UpdateReport
from rl.lock import held
from rl.process import end_group, run_main
from rl.repair import repair_export
from rl.rollout import Rollout
from rl.services import Progress, open_broker, open_sandboxes, write_atomically
from rl.skyrl.found import find_export
from rl.skyrl.freed import still_held
from rl.skyrl.generator import BrokerGenerator
from rl.skyrl.installed import load_experiment, require_skyrl
from rl.skyrl.mapping import EXPORTS, LOGS, overrides, skyrl_folder
from rl.skyrl.model import SkyrlModel
from rl.skyrl.panel import Ids, hear, panel_prompts, score_export
from rl.skyrl.prompts import PromptRows
from rl.skyrl.rollout import Watch
from rl.skyrl.updates import UpdateLog

_ENGINE_DTYPE: Final = "generator.inference_engine.model_dtype"
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # Needs a compiler at the first call; the ordinary sampler draws from the same distribution.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # A Ray that is joined gives its workers none of this process's search path.
    "SKYRL_PYTHONPATH_EXPORT": "1",
}
_LEAVE_SECONDS: Final = 5.0
_LOG_LINES: Final = 12


@dataclass
class Stage:
    """One job's way through SkyRL: what both threads know."""

    job: Job
    prompts: PromptRows
    progress: Progress
    model: SkyrlModel
    panel: tuple[Ids, ...]
    said: tuple[Completion, ...] = ()
    done: dict[int, int] = field(default_factory=dict[int, int])

    def episode(self, episode: GradedEpisode) -> None:
        self.progress.write("episode", {"correct": episode.verdict.correct})

    def lost(self, lost: Lost, bug: bool) -> None:
        fields = {"task": lost.attempt.task.id, "repetition": lost.attempt.repetition, "error": lost.error}
        self.progress.write("lost", {**fields, "bug": bug})

    def update(self, report: UpdateReport) -> None:
        self.progress.write("update", report.model_dump(mode="json"))

    def part(self, name: str, seconds: float) -> None:
        self.progress.write("part", {"name": name, "seconds": seconds})

    async def hear(self, client: Any) -> None:
        """What the engine says with the final weights; in SkyRL's loop."""
        self.model.open(client, asyncio.get_running_loop())
        try:
            self.said = await hear(self.model, self.panel)
        finally:
            self.model.close()


async def train(stage: Stage, broker: Broker) -> tuple[UpdateReport, ...]:
    """SkyRL from start to end, in a thread. A cancellation leaves that thread to the process's end."""
    settings = stage.job.skyrl
    assert settings is not None
    wanted = overrides(stage.job)
    experiment_class = load_experiment(settings.experiment)
    log = UpdateLog(stage.job.contract, settings, stage.update)

    def heard(update: int, rollout: Rollout) -> None:
        log.rollout(update, rollout)

    watch = Watch(episode=stage.episode, lost=stage.lost)
    generator = BrokerGenerator(stage.job, broker, stage.model, watch, heard)
    from rl.skyrl.experiment import Parts, build_config

    parts = Parts(
        settings=settings,
        prompts=stage.prompts,
        generator=generator,
        log=log,
        hear=stage.hear,
        on_stage=stage.part,
    )

    def work() -> None:
        experiment = experiment_class.open(_checked(lambda: build_config(wanted)), parts)
        try:
            experiment.run()
        finally:
            experiment.close()

    try:
        await in_thread(work)
    except TrainingError:
        raise
    except Exception as error:
        raise TrainingError(_explain(error, skyrl_folder(stage.job) / LOGS)) from error
    finally:
        await generator.close()
    if len(log.reports) != stage.job.contract.updates:
        raise TrainingError(
            f"SkyRL ended after {len(log.reports)} of {stage.job.contract.updates} updates; see log.txt"
        )
    return tuple(log.reports)


async def in_thread(work: Callable[[], None]) -> None:
    """Run `work` in a daemon thread. Unlike the loop's own pool nothing waits for it after a cancellation."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    failure: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=body, name="skyrl", daemon=True).start()
    await done.wait()
    if failure:
        raise failure[0]


def _checked(build: Callable[[], Any]) -> Any:
    """SkyRL's refusal of a setting as one line of ours."""
    try:
        return build()
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise TrainingError(f"SkyRL refuses the configuration: {error}") from error


def _explain(error: Exception, logs: Path) -> str:
    """One line of what went wrong, and the end of SkyRL's own log, which has the workers' side of it."""
    said = (str(error).strip().splitlines() or [""])[-1]
    files = sorted(logs.glob("infra-*.log")) if logs.is_dir() else []
    lines = files[-1].read_text(errors="replace").strip().splitlines()[-_LOG_LINES:] if files else []
    end = "".join(f"\n  {line}" for line in lines)
    return (
        f"SkyRL failed: {type(error).__name__}: {said}{f' (the end of {files[-1]}:){end}' if files else ''}"
    )


def finish(stage: Stage, reports: tuple[UpdateReport, ...], started: float) -> JobResult:
    """Find, score and repair what SkyRL exported."""
    job = stage.job
    settings = job.skyrl
    assert settings is not None
    before = time.perf_counter()
    policy = find_export(skyrl_folder(job) / EXPORTS)
    panel = score_export(
        policy,
        stage.panel,
        stage.said,
        dtype=target_dtype(job.base_model, job.export_dtype),
        engine_dtype=str(settings.options.get(_ENGINE_DTYPE, "bfloat16")),
        device=job.device,
    )
    write_atomically(job.folder / PANEL, panel.model_dump_json())
    stage.part("panel", time.perf_counter() - before)
    before = time.perf_counter()
    repaired = repair_export(policy, job.base_model, job.folder / EXPORT, dtype=job.export_dtype)
    stage.progress.write("repaired", {"repairs": list(repaired.repairs)})
    stage.part("repair", time.perf_counter() - before)
    return JobResult(
        export=job.folder / EXPORT,
        model=repaired.manifest.digest,
        base=model_digest(job.base_model),
        panel=job.folder / PANEL,
        packing="rows",
        updates=reports,
        cursor=stage.prompts.cursor,
        rounding_gap=panel.rounding_gap(),
        engine_gap=panel.engine_gap(),
        seconds=time.perf_counter() - started,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


async def run(job: Job) -> None:
    """Open everything, train, leave `result.json`."""
    if job.skyrl is None:
        raise TrainingError("this job has no settings for SkyRL: set trainer.kind=skyrl")
    version = require_skyrl()
    job.folder.mkdir(parents=True, exist_ok=True)
    if (job.folder / RESULT).exists():
        raise TrainingError(f"{job.folder} holds a finished job: choose a new folder")
    with held(job.folder):
        await _run(job, version)


async def _run(job: Job, version: str) -> None:
    started = time.perf_counter()
    _prepare_environment()
    progress = Progress(job.folder)
    try:
        model = SkyrlModel(ChatTemplate.load(job.base_model).end_ids)
        async with open_broker(job, model, job.base_model, open_sandboxes(job)) as broker:
            stage = Stage(
                job=job,
                prompts=PromptRows(job, broker.release),
                progress=progress,
                model=model,
                panel=panel_prompts(broker, job.panel_sequences),
            )
            facts = {"updates": job.contract.updates, "packing": "rows", "skyrl": version}
            progress.write("started", {**facts, "base": model_digest(job.base_model)})
            memory = MemoryWatch()
            reports = await train(stage, broker)
            if held := await asyncio.to_thread(still_held, memory):
                progress.write("held", {"error": held})
        result = await asyncio.to_thread(finish, stage, reports, started)
        write_atomically(job.folder / RESULT, result.model_dump_json())
        progress.write("finished", {"model": result.model, "seconds": result.seconds})
    finally:
        progress.close()


def _prepare_environment() -> None:
    """What SkyRL, Ray and vLLM read, also in the processes they start."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Meant for one trainer process on a CPU; it would hold up the engine's many threads.
    for name in ALLOCATOR:
        os.environ.pop(name, None)


def main(path: str) -> int:
    job = Job.model_validate_json(Path(path).read_bytes())
    return run_main(run(job))


def leave(status: int) -> None:
    """End the process at once, for a thread may still wait for Ray, and with it whatever it started here."""
    end_group(_LEAVE_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main(sys.argv[1]))
