"""The whole job in a process of its own: SkyRL's trainer, our episodes, export, repair; and how it ends."""

import asyncio
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import rl_jobs
from safetensors.torch import load_file

from rl.acceptance import chat_template_text
from rl.contract import RlContract
from rl.errors import TrainingError
from rl.job_spec import PROGRESS, Job
from rl.launch import run_job, validate_export
from rl.panel import read_panel
from rl.skyrl.mapping import EXPORTS, skyrl_folder
from rl.skyrl.settings import SkyrlSettings
from tests.fixtures.sandboxes import real_sandboxes

pytestmark = pytest.mark.slow
HERE = "tests.rl.with_skyrl.in_process"
SMALL = RlContract(updates=2, prompts_per_batch=2, attempts=4, learning_rate=1e-3)


def skyrl_job(folder: Path, experiment: str = "InProcessExperiment", **changes: Any) -> Job:
    settings = SkyrlSettings(experiment=f"{HERE}:{experiment}")
    return rl_jobs.job(folder, **{"skyrl": settings, "contract": SMALL, **changes})


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / PROGRESS).read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["event"] == name]


@pytest.mark.spec("RL-10", "RL-12", "EXP-01", "EXP-02", "EXP-03")
async def test_a_job_trains_with_skyrl_and_its_repaired_export_is_accepted(tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []
    job = skyrl_job(tmp_path / "train")
    result = await run_job(job, seen.append)
    assert [report.update for report in result.updates] == [1, 2]
    first = result.updates[0]
    assert (first.episodes, first.model_calls, first.micro_batches) == (8, 16, 4)
    assert 0 < first.reward < 1
    assert first.gradient_norm > 0
    assert first.seconds_generate > 0
    # The in-process engine and policy compute alike: SkyRL's own measure of that.
    assert first.logprob_gap_max < 1e-4
    kinds = [event["event"] for event in seen]
    assert kinds.count("episode") == 16
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert [event["name"] for event in events(job.folder, "part")] == ["ray", "engines", "panel", "repair"]

    (repaired,) = events(job.folder, "repaired")
    assert [line.split(":")[0] for line in repaired["repairs"]] == [
        "config.json",
        "the base's chat template added",
        "weights",
    ]
    assert chat_template_text(result.export) == chat_template_text(job.base_model)
    base, trained = (load_file(path / "model.safetensors") for path in (job.base_model, result.export))
    assert base.keys() == trained.keys()
    assert result.cursor == 4
    # Once, at the end: SkyRL also saves at the end of every epoch.
    assert [path.name for path in (skyrl_folder(job) / EXPORTS).iterdir()] == ["global_step_2"]

    panel = read_panel(result.panel)
    assert panel.narrow is not None
    assert panel.narrow.dtype == "bfloat16"
    assert len(panel.spoken) == len(panel.sequences) > 0
    check = rl_jobs.validation(tmp_path / "check", result.export, result.panel)
    accepted = await validate_export(check)
    assert accepted.model == result.model
    assert accepted.loaded is not None
    assert accepted.loaded.gaps.trainer_export == 0.0
    assert accepted.loaded.gaps.engine_mean is not None
    # The engine of this test computes in float32: it is off by what rounding and the type make.
    assert accepted.loaded.gaps.engine_mean <= 2.5 * panel.narrow.noise + 0.01


@pytest.mark.spec("RL-10")
async def test_an_update_that_falls_over_ends_the_job_in_one_line_and_exports_nothing(tmp_path: Path) -> None:
    job = skyrl_job(tmp_path / "train", "BreakingExperiment")
    with pytest.raises(TrainingError) as caught:
        await run_job(job)
    assert "SkyRL failed: RuntimeError: CUDA error: the second update fell over" in str(caught.value)
    assert len(events(job.folder, "update")) == 1
    assert not (job.folder / "result.json").exists()
    assert not (job.folder / "export").exists()


@pytest.mark.spec("RL-07")
async def test_a_program_that_never_calls_the_model_ends_the_job_with_its_own_line(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="TrainingError: RL-07: no trainable token"):
        await run_job(skyrl_job(tmp_path / "train", harness_code=rl_jobs.SILENT))


async def test_a_setting_that_skyrl_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    settings = SkyrlSettings(experiment=f"{HERE}:InProcessExperiment", options={"trainer.no_such_setting": 1})
    with pytest.raises(TrainingError, match=r"SkyRL refuses the configuration: .*no_such_setting"):
        await run_job(skyrl_job(tmp_path / "train", skyrl=settings))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="this machine can train")
async def test_an_installation_without_its_gpu_side_is_told_before_ray_starts(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        await run_job(skyrl_job(tmp_path / "train", skyrl=SkyrlSettings()))
    first = str(caught.value).splitlines()[0]
    assert "need vllm, vllm_router, flash_attn, which is absent: deploy/skyrl.md" in first


def family(pid: int) -> set[int]:
    """A process and everything below it."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def running(pids: set[int]) -> set[int]:
    """Those that still do anything; a zombie does not."""
    alive = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        # The sandboxes' watchdog outlives its host on purpose, to tidy up.
        if state != "Z" and "watchdog" not in Path(f"/proc/{pid}/cmdline").read_text():
            alive.add(pid)
    return alive


def writer_of(path: Path) -> int:
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == path and int(link.parts[2]) != os.getpid():
                return int(link.parts[2])
        except OSError:
            continue
    raise AssertionError(f"nobody has {path} open")


async def cancelled(job: Job, moment: str) -> set[int]:
    """Cancel the job at an event; the processes that were its own then."""
    reached = asyncio.Event()

    def look(event: Mapping[str, Any]) -> None:
        if moment in (event["event"], event.get("name")):
            reached.set()

    task = asyncio.ensure_future(run_job(job, look))
    done, _ = await asyncio.wait(
        [task, asyncio.ensure_future(reached.wait())], timeout=240, return_when="FIRST_COMPLETED"
    )
    assert reached.is_set(), done
    pids = family(writer_of(job.folder / PROGRESS))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return pids


@pytest.mark.parametrize(
    ("experiment", "moment"),
    [
        ("InProcessExperiment", "episode"),
        ("StuckExperiment", "stuck"),
        ("OnRay", "stuck"),
    ],
)
async def test_cancelling_ends_everything_that_the_job_started_whatever_skyrl_waits_for(
    tmp_path: Path, experiment: str, moment: str
) -> None:
    await real_sandboxes().close()
    contract = SMALL.model_copy(update={"updates": 50})
    job = skyrl_job(tmp_path / "train", experiment, contract=contract)
    pids = await cancelled(job, moment)
    assert len(pids) > (3 if experiment == "OnRay" else 1)
    # The last ones were killed by force; the kernel may still be at it.
    for _ in range(100):
        if not (left := running(pids)):
            break
        await asyncio.sleep(0.1)
    assert left == set()
    assert "stopped by a signal" in (job.folder / "log.txt").read_text()
    assert not (job.folder / "result.json").exists()
