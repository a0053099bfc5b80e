"""The whole stage in this process: real engine, trainer, export and checks; only the sandbox is a fake."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rl_jobs
import torch
from rl_samples import call, episode

from broker.attempt import Attempt
from broker.broker import Broker
from broker.engine.engine import EmbeddedEngine
from broker.harness import Harness
from broker.template import ChatTemplate
from catalog.digest import digest_file
from rl.contract import RlContract
from rl.embedded.job import train
from rl.errors import ExportRefused, TrainingError
from rl.job_spec import EPISODES, PROGRESS, Job, JobResult
from rl.manifest import read_manifest
from rl.order import training_order, training_tasks
from rl.panel import read_panel
from rl.rollout import Rollout, collect, plan_attempts
from rl.services import Progress, open_broker, open_engine
from rl.skyrl.model import SkyrlModel
from rl.skyrl.rollout import Watch
from rl.skyrl.rollout import collect as collect_for_skyrl
from rl.validate import check_generations, measure
from rl.validate import validate as validate_all
from tasks.config import RunConfig
from tests.fixtures.episodes import ASK_AND_SUBMIT, release
from tests.fixtures.fake_sandbox import FakeFactory
from tests.rl.with_skyrl.fake_client import ScriptedClient


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedEngine]:
    opened = open_engine(rl_jobs.job(tmp_path), rl_jobs.base_model())
    yield opened
    opened.close()


async def trained(job: Job, engine: EmbeddedEngine, factory: FakeFactory | None = None) -> JobResult:
    job.folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(job.folder)
    async with open_broker(job, engine, rl_jobs.base_model(), factory or FakeFactory()) as broker:
        return await train(job, engine, broker, progress)


def events(folder: Path, kind: str) -> list[dict[str, object]]:
    lines = (folder / PROGRESS).read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.spec("RL-01", "RL-04", "RL-05", "EXP-01")
async def test_two_updates_train_on_fresh_episodes_and_leave_an_export(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    factory = FakeFactory()
    job = rl_jobs.job(tmp_path / "job")
    result = await trained(job, engine, factory)
    assert factory.closed == len(factory.started) > 0
    assert [report.episodes for report in result.updates] == [16, 16]
    assert [report.model_calls for report in result.updates] == [32, 32]
    for report in result.updates:
        # Rollouts come from the very weights that are trained: on-policy up to rounding, after an update too.
        assert report.logprob_gap_max < 1e-4
        assert report.logprob_gap_mean <= 1e-4
        assert report.clip_share == 0.0
        assert report.gradient_norm > 0
        assert report.entropy > 0
        assert report.computed_tokens < report.plain_tokens
        assert min(report.seconds_generate, report.seconds_update, report.seconds_sync) > 0
        assert report.tokens_per_second == pytest.approx(report.generated_tokens / report.seconds_generate)
    assert result.packing == "tree"
    assert result.cursor == 8
    assert result.rounding_gap == 0.0
    panel = read_panel(result.panel)
    assert len(panel.spoken) == len(panel.sequences) > 0
    assert all(item.completion_ids for item in panel.spoken)
    assert result.engine_gap == panel.engine_gap() < 1e-4
    assert [event["update"] for event in events(job.folder, "update")] == [1, 2]
    ended = events(job.folder, "episode")
    assert len(ended) == 32
    for report in result.updates:
        right = sum(event["correct"] for event in ended if event["update"] == report.update)
        assert report.reward == pytest.approx(right / 16)


async def test_the_same_job_gives_the_same_model(tmp_path: Path) -> None:
    models = []
    for name in ("one", "two"):
        contract = RlContract(updates=1, prompts_per_batch=2, attempts=3)
        # One episode at a time: which sequences share a pass hangs on a machine's load, and so does rounding.
        job = rl_jobs.job(tmp_path / name, contract=contract, concurrency=1)
        engine = open_engine(job, rl_jobs.base_model())
        models.append((await trained(job, engine)).model)
        engine.close()
    assert models[0] == models[1]


@pytest.mark.spec("RL-01", "RL-02", "SCHED-05")
def test_attempts_are_grouped_seeded_apart_and_sampled_at_temperature_1() -> None:
    tasks = release().split("train")[:2]
    contract = RlContract(attempts=3)
    first = plan_attempts(tasks, Harness(code="x"), contract, seed=1, step=31)
    again = plan_attempts(tasks, Harness(code="x"), contract, seed=1, step=32)
    assert [(item.task.id, item.repetition) for item in first] == [
        (task.id, number) for task in tasks for number in range(3)
    ]
    assert len({item.seed for item in [*first, *again]}) == 12
    assert {(item.temperature, item.mode) for item in first} == {(1.0, "rl")}


@pytest.mark.spec("RL-01", "SCHED-05")
async def test_each_update_of_each_cycle_draws_the_next_tasks_with_seeds_of_their_own(
    tmp_path: Path, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[Attempt]] = []

    async def watched(broker: Broker, attempts: list[Attempt], *rest: Any) -> Rollout:
        asked.append(list(attempts))
        return await collect(broker, attempts, *rest)

    monkeypatch.setattr("rl.embedded.job.collect", watched)
    contract = RlContract(updates=2, prompts_per_batch=2, attempts=3)
    for cycle in (1, 2):
        # The second cycle here begins at the first one's tasks: only its seeds tell it apart.
        job = rl_jobs.job(tmp_path / str(cycle), contract=contract, cycle=cycle, cursor=1)
        engine.resume()
        await trained(job, engine)
    order = [task.id for task in training_order(1, training_tasks(release()))]
    drawn = [list(dict.fromkeys(attempt.task.id for attempt in attempts)) for attempts in asked]
    assert drawn == [order[1:3], order[3:5]] * 2
    assert len({attempt.seed for attempts in asked for attempt in attempts}) == 4 * 6


@pytest.mark.spec("RL-01")
@pytest.mark.parametrize("trainer", ["embedded", "skyrl"])
async def test_sixteen_attempts_are_more_episodes_and_no_more_at_a_time(tmp_path: Path, trainer: str) -> None:
    contract = RlContract(prompts_per_batch=2, attempts=16)
    job = rl_jobs.job(tmp_path, contract=contract, concurrency=5)
    attempts = plan_attempts(
        release().split("train")[:2], Harness(code=ASK_AND_SUBMIT), contract, seed=1, step=1
    )
    assert len(attempts) == contract.episodes_per_batch == 32
    model = SkyrlModel([])
    model.open(ScriptedClient(), asyncio.get_running_loop())
    async with open_broker(job, model, rl_jobs.base_model(), FakeFactory()) as broker:
        if trainer == "embedded":
            rollout = await collect(broker, attempts, contract)
        else:
            names = [str(number) for number in range(32)]
            watch = Watch(episode=lambda episode: None, lost=lambda lost, bug: None)
            rollout = await collect_for_skyrl(broker, model, attempts, names, contract, watch)
        assert broker.limiter.peak == 5
    assert len(rollout.episodes) == len({row.trajectory for row in rollout.batch.rows}) == 32
    assert RunConfig(rl=contract).concurrency == 64


@pytest.mark.spec("RL-03")
async def test_a_test_or_val_task_is_never_trained_on(tmp_path: Path, engine: EmbeddedEngine) -> None:
    job = rl_jobs.job(tmp_path)
    for split in ("val", "test"):
        attempts = plan_attempts(release().split(split)[:1], Harness(code="x"), job.contract, seed=1, step=1)
        async with open_broker(job, engine, rl_jobs.base_model(), FakeFactory()) as broker:
            with pytest.raises(TrainingError, match="RL-03"):
                await collect(broker, attempts, job.contract)
            watch = Watch(episode=lambda episode: None, lost=lambda lost, bug: None)
            names = [str(number) for number in range(len(attempts))]
            with pytest.raises(TrainingError, match="RL-03"):
                await collect_for_skyrl(broker, SkyrlModel([]), attempts, names, job.contract, watch)


@pytest.mark.spec("RL-07")
async def test_a_program_that_never_calls_the_model_ends_the_stage_with_a_clear_line(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    with pytest.raises(TrainingError, match="RL-07: no trainable token"):
        await trained(rl_jobs.job(tmp_path / "job", harness_code=rl_jobs.SILENT), engine)


async def test_a_lost_attempt_masks_its_group_and_is_counted(tmp_path: Path, engine: EmbeddedEngine) -> None:
    job = rl_jobs.job(
        tmp_path / "job", concurrency=1, contract=RlContract(updates=1, prompts_per_batch=2, attempts=2)
    )
    job.folder.mkdir()
    factory = FakeFactory()
    async with open_broker(job, engine, rl_jobs.base_model(), factory) as broker:
        broker.back_off = 0.0
        # The first try of the first attempt and both retries.
        factory.failures = 3
        result = await train(job, engine, broker, Progress(job.folder))
    (report,) = result.updates
    assert (report.lost_prompts, report.episodes) == (1, 3)


async def test_cancelling_closes_every_sandbox_and_exports_nothing(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    factory = FakeFactory()
    job = rl_jobs.job(tmp_path / "job", contract=RlContract(updates=50, prompts_per_batch=4))
    task = asyncio.ensure_future(trained(job, engine, factory))
    await asyncio.sleep(1.0)
    assert factory.started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert factory.closed == len(factory.started)
    assert not (job.folder / "export").exists()


@pytest.mark.spec("EXP-02")
async def test_validation_measures_the_whole_test_split_with_the_loaded_export(
    tmp_path: Path, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await trained(rl_jobs.job(tmp_path / "job"), engine)
    check = rl_jobs.validation(tmp_path / "check", result.export, result.panel)
    check.folder.mkdir()
    monkeypatch.setattr("rl.validate.open_sandboxes", lambda setup: FakeFactory())
    accepted = await validate_all(check, Progress(check.folder))
    assert accepted.model == result.model
    assert accepted.evaluation is not None
    assert {item.task_id for item in accepted.evaluation.outcomes} == {
        task.id for task in release().split("test")
    }
    assert accepted.loaded is not None
    gaps = accepted.loaded.gaps
    assert max(gaps.trainer_export, gaps.engine_export, gaps.trainer_engine) < 1e-4
    assert (accepted.loaded.architecture, accepted.loaded.dtype) == ("LlamaForCausalLM", "float32")
    assert accepted.loaded.tokenizer == ChatTemplate.load(rl_jobs.base_model()).digest
    assert accepted.loaded.chat_template == digest_file(rl_jobs.base_model() / "chat_template.jinja")
    assert accepted.generated_tokens > 0
    assert len((check.folder / EPISODES).read_text().splitlines()) == 4


@pytest.mark.spec("EXP-03")
async def test_another_models_weights_under_a_fitting_manifest_fail_the_panel(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    result = await trained(rl_jobs.job(tmp_path / "job"), engine)
    check = rl_jobs.validation(tmp_path / "check", result.export, result.panel)
    check.folder.mkdir()
    with torch.no_grad():
        engine.model.model.norm.weight.add_(0.01)
    engine.resume()
    async with open_broker(check, engine, rl_jobs.base_model(), FakeFactory()) as broker:
        with pytest.raises(ExportRefused) as caught:
            await measure(check, engine, broker, read_manifest(result.export), Progress(check.folder))
    assert caught.value.reason == "panel"


@pytest.mark.spec("EXP-02")
def test_a_model_that_says_nothing_is_refused() -> None:
    blank = [episode("a", 0, [call(0, [1], [2], [-1.0])])]
    with pytest.raises(ExportRefused, match="empty_generations"):
        check_generations(blank)
    silent = [episode("a", 0, [])]
    with pytest.raises(ExportRefused, match="no model call"):
        check_generations(silent)
    spoken = blank[0].record.model_calls[0].model_copy(update={"text": "The answer"})
    record = blank[0].record.model_copy(update={"model_calls": (spoken,)})
    assert check_generations([*blank, blank[0].model_copy(update={"record": record})]) == 2
