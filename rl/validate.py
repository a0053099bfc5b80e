"""`python -m rl.validate JOB.json`: a separate process proves that an export is a model (EXP-02, EXP-03).

Files and weights first, then the model is loaded, scores the panel and answers the whole Test split. A
refusal is a result with a named reason; an exception is a fault of ours and leaves no result. Must not know
training.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from broker.broker import Broker
from broker.engine.engine import EmbeddedEngine
from broker.errors import ModelUnavailable
from broker.evaluation import CoverageError, Evaluation, evaluate
from broker.harness import Harness
from broker.record import GradedEpisode
from catalog.digest import digest_bytes
from rl import vllm_check
from rl.acceptance import chat_template_text, check_export
from rl.errors import ExportRefused, TrainingError
from rl.job_spec import EPISODES, RESULT, Loaded, ValidationJob, ValidationResult, VllmCheck
from rl.manifest import Manifest
from rl.panel import check_panel, read_panel
from rl.process import run_main
from rl.services import Progress, open_broker, open_engine, open_sandboxes, write_atomically


def check_generations(episodes: Sequence[GradedEpisode]) -> int:
    """Generated tokens of all episodes. Refuses a model that says nothing (EXP-02).

    Every episode whose program did not fail holds a model call, and some text has more than one character.
    """
    records = [item.record for item in episodes]
    silent = [record.task_id for record in records if not record.model_calls and not record.error]
    if silent:
        raise ExportRefused("empty_generations", f"no model call on {', '.join(silent[:5])}")
    calls = [call for record in records for call in record.model_calls]
    if not any(len(set(call.text.strip())) > 1 for call in calls):
        raise ExportRefused("empty_generations", f"all {len(calls)} generations are blank or one character")
    return sum(len(call.completion.token_ids) for call in calls)


async def measure(
    job: ValidationJob,
    engine: EmbeddedEngine,
    broker: Broker,
    manifest: Manifest,
    progress: Progress,
    vllm: VllmCheck | None = None,
) -> ValidationResult:
    """Panel and Test with the loaded export. Raises `ExportRefused`."""
    started = time.perf_counter()
    await asyncio.to_thread(engine.pause)
    gaps = check_panel(read_panel(job.panel), engine.model)
    engine.resume()
    total = len(broker.release.split("test"))
    done = 0

    def tick(episode: GradedEpisode) -> None:
        nonlocal done
        done += 1
        progress.write("episode", {"done": done, "total": total, "correct": episode.verdict.correct})

    evaluation, episodes = await _evaluate(job, broker, tick)
    tokens = check_generations(episodes)
    path = job.folder / EPISODES
    write_atomically(path, "".join(f"{episode.model_dump_json()}\n" for episode in episodes))
    return ValidationResult(
        model=manifest.digest,
        evaluation=evaluation,
        episodes=path,
        loaded=Loaded(
            architecture=manifest.architecture,
            dtype=manifest.dtype,
            tokenizer=broker.template.digest,
            chat_template=digest_bytes((chat_template_text(job.export) or "").encode()),
            gaps=gaps,
            vllm=vllm,
        ),
        generated_tokens=tokens,
        seconds=time.perf_counter() - started,
    )


async def _evaluate(
    job: ValidationJob, broker: Broker, tick: Callable[[GradedEpisode], None]
) -> tuple[Evaluation, list[GradedEpisode]]:
    try:
        return await evaluate(broker, Harness(code=job.harness_code), "test", seed=job.seed, progress=tick)
    except CoverageError as error:
        raise ExportRefused("coverage", str(error)) from error


def _load(job: ValidationJob) -> EmbeddedEngine:
    try:
        return open_engine(job, job.export)
    except ModelUnavailable as error:
        raise ExportRefused("weights_unreadable", str(error)) from error


async def validate(job: ValidationJob, progress: Progress) -> ValidationResult:
    """All checks, cheapest first. Raises `ExportRefused`."""
    manifest = check_export(job.export, job.base_model, dtype=job.export_dtype)
    # Before the engine is loaded: on a GPU the two would not fit beside each other.
    vllm = await vllm_check.check(job) if job.vllm == "auto" and vllm_check.importable() else None
    sandboxes = open_sandboxes(job)
    engine = _load(job)
    try:
        async with open_broker(job, engine, job.export, sandboxes) as broker:
            return await measure(job, engine, broker, manifest, progress, vllm)
    finally:
        engine.close()


async def run(job: ValidationJob) -> None:
    """Leave `result.json`: acceptance with its measurement, or a named refusal."""
    job.folder.mkdir(parents=True, exist_ok=True)
    if (job.folder / RESULT).exists():
        raise TrainingError(f"{job.folder} holds a finished validation: choose a new folder")
    progress = Progress(job.folder)
    try:
        try:
            result = await validate(job, progress)
        except ExportRefused as error:
            result = ValidationResult(refused=error.reason, detail=error.detail)
        write_atomically(job.folder / RESULT, result.model_dump_json())
    finally:
        progress.close()


def main(path: str) -> int:
    job = ValidationJob.model_validate_json(Path(path).read_bytes())
    return run_main(run(job))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
