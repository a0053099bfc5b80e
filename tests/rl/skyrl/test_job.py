"""The whole job: SkyRL's own trainer for two updates, our episodes, export, repair, validation."""

import json
from pathlib import Path
from typing import Any

import pytest
import rl_jobs

from rl.job_spec import PROGRESS, Job
from rl.launch import run_job, validate_export
from rl.skyrl.settings import SkyrlSettings

IN_PROCESS = SkyrlSettings(experiment="tests.rl.skyrl.in_process:InProcessExperiment")


def skyrl_job(folder: Path, **changes: Any) -> Job:
    return rl_jobs.job(folder, **{"skyrl": IN_PROCESS, **changes})


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / PROGRESS).read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["event"] == name]


@pytest.mark.slow
@pytest.mark.spec("RL-10", "EXP-01", "EXP-02", "EXP-03")
async def test_a_job_trains_with_skyrl_and_its_repaired_export_is_accepted(tmp_path: Path) -> None:
    job = skyrl_job(tmp_path / "train")
    result = await run_job(job)
    assert [report.update for report in result.updates] == [1, 2]
    accepted = await validate_export(rl_jobs.validation(tmp_path / "check", result.export, result.panel))
    assert accepted.model == result.model
    print(result, accepted.loaded, (job.folder / "progress.jsonl").read_text()[-1500:])
