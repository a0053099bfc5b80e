"""A phase whose engine, disk or predecessor fails it: each failure is caused for real."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import rl_jobs
import torch
from rl_samples import tiny_llama

from broker.engine.engine import EmbeddedEngine
from broker.harness import Harness
from broker.record import GradedEpisode
from rl.contract import RlContract
from rl.embedded import job as embedded_job
from rl.embedded.job import train
from rl.errors import TrainingError
from rl.export import write_export
from rl.job_spec import Job, JobResult
from rl.launch import run_job
from rl.lock import held
from rl.repair import repair_export
from rl.rollout import collect, plan_attempts
from rl.services import Progress, open_broker, open_engine
from rl.skyrl import job as skyrl_job
from rl.skyrl.settings import SkyrlSettings
from tests.fixtures.episodes import release
from tests.fixtures.fake_sandbox import FakeFactory
from tests.fixtures.sandboxes import real_sandboxes

SMALL = RlContract(updates=1, prompts_per_batch=2, attempts=4, learning_rate=1e-3)
SERVER = ("python", "-m", "tests.fixtures.stub_server", "--port", "0")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedEngine]:
    opened = open_engine(rl_jobs.job(tmp_path), rl_jobs.base_model())
    yield opened
    opened.close()


async def trained(job: Job, engine: EmbeddedEngine) -> JobResult:
    job.folder.mkdir(parents=True, exist_ok=True)
    async with open_broker(job, engine, rl_jobs.base_model(), FakeFactory()) as broker:
        broker.back_off = 0.0
        return await train(job, engine, broker, Progress(job.folder))


class Failing:
    """A pass of the engine that fails, as a driver's error would make it, from one call to another."""

    def __init__(self, model: torch.nn.Module, first: int, last: int) -> None:
        self.calls = 0
        self.failed = 0
        self._first, self._last = first, last
        self.handle = model.register_forward_pre_hook(self.look)

    def look(self, *_: object) -> None:
        # The trainer runs the same module, in other threads.
        if threading.current_thread().name != "embedded-engine":
            return
        self.calls += 1
        if self._first <= self.calls <= self._last:
            self.failed += 1
            raise RuntimeError("CUDA error: device-side assert triggered")


WRONG = """
def run(task, api):
    api.generate([{"role": "user", "content": task["prompt"]}])
    api.submit("<answer>?</answer>")
"""


async def test_a_phase_in_which_nothing_was_learned_says_so_and_exports_nothing(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    job = rl_jobs.job(tmp_path / "job", harness_code=WRONG, contract=SMALL)
    with pytest.raises(TrainingError, match=r"none of 1 updates took a step, .* \(Train reward 0.00\)"):
        await trained(job, engine)
    events = [json.loads(line) for line in (job.folder / "progress.jsonl").read_text().splitlines()]
    (update,) = [event for event in events if event["event"] == "update"]
    assert (update["skipped"], update["zero_variance_groups"], update["reward"]) == ("no_contrast", 2, 0.0)
    assert not (job.folder / "export").exists()


async def test_episodes_that_a_failing_engine_pass_loses_are_run_again(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    failing = Failing(engine.model, 5, 5)
    result = await trained(rl_jobs.job(tmp_path / "job"), engine)
    assert failing.failed == 1
    assert [report.lost_prompts for report in result.updates] == [0, 0]
    assert [report.episodes for report in result.updates] == [16, 16]
    assert (result.export / "model.safetensors").is_file()


async def test_an_engine_that_never_answers_ends_the_phase_with_its_own_words(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    failing = Failing(engine.model, 1, 1 << 30)
    with pytest.raises(TrainingError, match=r"first loss: .*device-side assert triggered"):
        await trained(rl_jobs.job(tmp_path / "job"), engine)
    failing.handle.remove()
    assert not (tmp_path / "job" / "export").exists()


def servers() -> set[int]:
    """Our scripted servers that still run."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, state = path.read_bytes(), (path.parent / "stat").read_text()
        except OSError:
            continue
        if b"tests.fixtures.stub_server" in words and state.rsplit(")", 1)[1].split()[0] != "Z":
            found.add(int(path.parent.name))
    return found


@pytest.mark.slow
async def test_groups_that_a_killed_server_lost_are_masked_and_the_finished_ones_kept(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    before = servers()
    job = rl_jobs.job(tmp_path / "job", scripted_server=SERVER, concurrency=1)
    job.folder.mkdir()
    tasks = release().split("train")[:3]
    attempts = plan_attempts(tasks, Harness(code=rl_jobs.guess()), SMALL, seed=1, step=1)
    done = 0

    def kill_after_first_group(episode: GradedEpisode) -> None:
        nonlocal done
        done += 1
        if done == SMALL.attempts + 1:
            for process in servers() - before:
                os.kill(process, signal.SIGKILL)

    async with open_broker(job, engine, rl_jobs.base_model(), FakeFactory()) as broker:
        broker.back_off, broker.retries = 0.0, 0
        rollout = await collect(broker, attempts, SMALL, kill_after_first_group)
    assert rollout.batch.lost_prompts == (tasks[1].id, tasks[2].id)
    assert len(rollout.episodes) == SMALL.attempts + 1
    rows = [row for row in rollout.batch.rows if row.trainable]
    assert {row.trajectory.instance for row in rows} == {tasks[0].id}
    assert len({row.trajectory for row in rows}) == SMALL.attempts


@contextmanager
def small_disk(folder: Path, size: int) -> Generator[Path]:
    """A file system of its own with `size` bytes."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.spec("EXP-01")
def test_a_full_disk_at_export_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        with pytest.raises(TrainingError, match=r"could not be written .* MB are free; make room") as caught:
            write_export(tiny_llama(vocabulary=1_024), rl_jobs.base_model(), disk / "export")
        assert "\n" not in str(caught.value)
        assert list(disk.iterdir()) == []


@pytest.mark.spec("EXP-01")
def test_a_limit_on_files_at_export_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, before[1]))
    try:
        with pytest.raises(TrainingError, match="could not be written"):
            write_export(tiny_llama(vocabulary=1_024), rl_jobs.base_model(), tmp_path / "export")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("EXP-01")
def test_a_full_disk_while_an_export_of_skyrls_is_repaired_leaves_nothing_too(tmp_path: Path) -> None:
    base = rl_jobs.base_model()
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        with pytest.raises(TrainingError, match=r"could not be written .* MB are free; make room"):
            repair_export(base, base, disk / "export", dtype="float32")
        assert list(disk.iterdir()) == []


def test_a_folder_that_a_living_trainer_holds_is_not_taken(tmp_path: Path) -> None:
    held_folder = tmp_path / "job"
    held_folder.mkdir()
    with held(held_folder):
        with pytest.raises(TrainingError, match=f"process {os.getpid()} is at work in"), held(held_folder):
            pass
        assert (held_folder / "lock").read_text() == str(os.getpid())
    with held(held_folder):
        pass


async def test_a_job_is_not_begun_anew_under_a_living_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.launch._LOCK_SECONDS", 0.2)
    job = rl_jobs.job(tmp_path / "job")
    job.folder.mkdir()
    (job.folder / "progress.jsonl").write_text("theirs")
    with held(job.folder), pytest.raises(TrainingError, match="is at work in"):
        await run_job(job)
    assert (job.folder / "progress.jsonl").read_text() == "theirs"


@pytest.mark.parametrize("kind", ["embedded", "skyrl"])
async def test_neither_trainer_begins_in_a_folder_where_another_one_is_at_work(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.skyrl.job.require_skyrl", lambda: "0.4.0")
    settings = SkyrlSettings() if kind == "skyrl" else None
    job = rl_jobs.job(tmp_path / "job", skyrl=settings)
    job.folder.mkdir()
    begin = embedded_job.run if kind == "embedded" else skyrl_job.run
    with held(job.folder), pytest.raises(TrainingError, match=f"process {os.getpid()} is at work in"):
        await begin(job)
    assert [path.name for path in job.folder.iterdir()] == ["lock"]


@pytest.mark.slow
async def test_the_lock_of_a_trainer_that_was_killed_is_stale_and_its_folder_taken_over(
    tmp_path: Path,
) -> None:
    await real_sandboxes().close()
    long = rl_jobs.job(tmp_path / "job", contract=SMALL.model_copy(update={"updates": 500}))
    begun = asyncio.Event()
    first = asyncio.ensure_future(run_job(long, lambda event: begun.set()))
    await asyncio.wait_for(begun.wait(), 300)
    os.kill(int((long.folder / "lock").read_text()), signal.SIGKILL)
    with pytest.raises(TrainingError, match="status -9"):
        await first
    assert (long.folder / "lock").exists()
    assert not (long.folder / "result.json").exists()
    result = await run_job(rl_jobs.job(tmp_path / "job", contract=SMALL))
    assert len(result.updates) == 1
    assert (result.export / "model.safetensors").is_file()
