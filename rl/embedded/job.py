"""`python -m rl.embedded.job JOB.json`: one RL stage in one process, engine and trainer on one module.

Reads top to bottom: roll out, update in place while the engine is paused, resume; then export and score the
panel. Leaves `result.json` or nothing. Must not know handoff, claims or Prefect.
"""

import asyncio
import resource
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from broker.broker import Broker
from broker.engine.engine import EmbeddedEngine
from broker.engine.loading import choose_device
from broker.harness import Harness
from broker.record import GradedEpisode
from rl.contract import RewardKind
from rl.embedded.fitting import Way
from rl.embedded.memory import return_memory
from rl.embedded.metrics import UpdateMetrics
from rl.embedded.periodic import Periodic
from rl.embedded.publish import publish
from rl.embedded.trainer import Trainer
from rl.errors import TrainingError
from rl.job_spec import EXPORT, PANEL, RESULT, Job, JobResult, UpdateReport
from rl.lock import held
from rl.order import draw_batch, training_order, training_tasks
from rl.patience import require_a_step
from rl.process import run_main
from rl.rollout import Rollout, collect, plan_attempts
from rl.rows import reward_of
from rl.services import Progress, open_broker, open_engine, open_sandboxes, write_atomically


async def train(job: Job, engine: EmbeddedEngine, broker: Broker, progress: Progress) -> JobResult:
    """The whole stage. Cancelling it ends between micro-batches and publishes nothing."""
    started = time.perf_counter()
    base = engine.identity
    order = training_order(job.seed, training_tasks(broker.release))
    trainer = Trainer(
        engine.model,
        job.contract,
        packing=job.packing,
        token_budget=job.token_budget,
        checkpointing=job.checkpointing,
    )
    progress.write("started", {"updates": job.contract.updates, "packing": trainer.packing, "base": base})
    reports: list[UpdateReport] = []
    cursor = job.cursor
    periodic = Periodic(job, broker, progress)
    await periodic.at(0)
    for update in range(1, job.contract.updates + 1):
        tasks = draw_batch(order, cursor, job.contract.prompts_per_batch)
        cursor += len(tasks)
        attempts = plan_attempts(
            tasks,
            Harness(code=job.harness_code),
            job.contract,
            seed=job.seed,
            step=job.cycle * job.contract.updates + update,
        )
        ticker = _Ticker(progress, update, len(attempts))
        rollout = await collect(broker, attempts, job.contract, ticker.tick)
        metrics, seconds_sync = await _update(engine, trainer, rollout)
        reports.append(_report(update, rollout, metrics, seconds_sync, job.contract.reward))
        progress.write("update", reports[-1].model_dump(mode="json"))
        await periodic.at(update)
    require_a_step(reports)
    packing, masters = trainer.packing, trainer.optimiser.masters
    # The optimiser's state is not exported (RL-12), and the export needs the room.
    del trainer
    result = _finish(job, engine, broker, packing, masters, reports, cursor, base, started)
    return result.model_copy(update={"evaluations": tuple(periodic.done)})


class _Ticker:
    """One cheap event per finished episode."""

    def __init__(self, progress: Progress, update: int, total: int) -> None:
        self._progress, self._update, self._total, self._done = progress, update, total, 0

    def tick(self, episode: GradedEpisode) -> None:
        self._done += 1
        fields = {"update": self._update, "done": self._done, "total": self._total}
        self._progress.write("episode", {**fields, "correct": episode.verdict.correct})


async def _update(engine: EmbeddedEngine, trainer: Trainer, rollout: Rollout) -> tuple[UpdateMetrics, float]:
    """One optimiser step while the engine is idle; also the seconds of pausing and resuming."""
    stop = threading.Event()
    before = time.perf_counter()
    await asyncio.to_thread(engine.pause)
    paused = time.perf_counter() - before
    work = asyncio.ensure_future(asyncio.to_thread(trainer.step, rollout.batch, stop))
    try:
        metrics = await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([work])
        raise
    before = time.perf_counter()
    return_memory()
    engine.resume()
    return metrics, paused + time.perf_counter() - before


def _report(
    update: int, rollout: Rollout, metrics: UpdateMetrics, seconds_sync: float, kind: RewardKind
) -> UpdateReport:
    episodes, batch = rollout.episodes, rollout.batch
    return UpdateReport(
        update=update,
        reward=_mean([reward_of(episode, kind) for episode in episodes]),
        completion_rate=_mean([float(episode.verdict.format_valid) for episode in episodes]),
        episodes=len(episodes),
        model_calls=sum(len(episode.record.model_calls) for episode in episodes),
        zero_call_episodes=batch.zero_call_episodes,
        lost_prompts=len(batch.lost_prompts),
        silent_prompts=len(batch.silent_prompts),
        generated_tokens=rollout.generated_tokens,
        tokens_per_second=rollout.generated_tokens / max(rollout.seconds, 1e-9),
        seconds_generate=rollout.seconds,
        seconds_update=metrics.seconds,
        seconds_sync=seconds_sync,
        **metrics.model_dump(exclude={"seconds"}),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _finish(
    job: Job,
    engine: EmbeddedEngine,
    broker: Broker,
    packing: Way,
    masters: Mapping[str, Tensor],
    reports: Sequence[UpdateReport],
    cursor: int,
    base: str,
    started: float,
) -> JobResult:
    # Prompts the model knows from training: sharp distributions show a wrong weight best.
    prompts = [
        broker.template.encode([{"role": "user", "content": task.prompt}])
        for task in broker.release.split("train")[: job.panel_sequences]
    ]
    manifest, panel = publish(job, engine, prompts, masters)
    write_atomically(job.folder / PANEL, panel.model_dump_json())
    return JobResult(
        export=job.folder / EXPORT,
        model=manifest.digest,
        base=base,
        panel=job.folder / PANEL,
        packing=packing,
        updates=tuple(reports),
        cursor=cursor,
        rounding_gap=panel.rounding_gap(),
        engine_gap=panel.engine_gap(),
        seconds=time.perf_counter() - started,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


async def run(job: Job) -> None:
    """Open everything, train, leave `result.json`."""
    job.folder.mkdir(parents=True, exist_ok=True)
    if (job.folder / RESULT).exists():
        raise TrainingError(f"{job.folder} holds a finished job: choose a new folder")
    with held(job.folder):
        await _run(job)


async def _run(job: Job) -> None:
    # Before the engine: opening one for bfloat16 lowers the precision of the whole process's products.
    if job.precision == "bfloat16" and choose_device(job.device).type == "cpu":
        raise TrainingError("precision=bfloat16 needs a GPU: on a CPU train with precision=float32")
    progress = Progress(job.folder)
    sandboxes = open_sandboxes(job)
    engine = open_engine(job, job.base_model, exact=job.precision == "float32")
    try:
        async with open_broker(job, engine, job.base_model, sandboxes) as broker:
            result = await train(job, engine, broker, progress)
        write_atomically(job.folder / RESULT, result.model_dump_json())
        progress.write("finished", {"model": result.model, "seconds": result.seconds})
    finally:
        engine.close()
        progress.close()


def main(path: str) -> int:
    job = Job.model_validate_json(Path(path).read_bytes())
    return run_main(run(job))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
