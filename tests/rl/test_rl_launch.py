"""Training and validation as real child processes, in real sandboxes."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import rl_jobs

from rl.contract import RlContract
from rl.errors import ExportRefused, TrainingError
from rl.launch import run_job, validate_export
from tests.fixtures.sandboxes import real_sandboxes

SMALL = RlContract(updates=1, prompts_per_batch=2, attempts=4, learning_rate=1e-3)


@pytest.mark.spec("EXP-02", "EXP-03")
@pytest.mark.slow
@pytest.mark.parametrize("fork", [False, True])
async def test_a_child_trains_and_another_child_accepts_or_refuses_the_export(
    tmp_path: Path, fork: bool
) -> None:
    await real_sandboxes().close()
    seen: list[Mapping[str, Any]] = []
    trained = await run_job(rl_jobs.job(tmp_path / "train", contract=SMALL), seen.append, fork=fork)
    assert [event["event"] for event in seen] == ["started", *["episode"] * 8, "update", "finished"]
    check = rl_jobs.validation(tmp_path / "check", trained.export, trained.panel)
    accepted = await validate_export(check, fork=fork)
    assert accepted.model == trained.model
    assert accepted.evaluation is not None
    assert accepted.evaluation.total == 4
    weights = trained.export / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ExportRefused) as caught:
        await validate_export(check, fork=fork)
    assert caught.value.reason == "manifest"


@pytest.mark.parametrize("fork", [False, True])
async def test_a_dying_child_is_reported_with_the_end_of_its_log(tmp_path: Path, fork: bool) -> None:
    with pytest.raises(TrainingError, match=r"status 1: .*no model folder|status 1: .*model"):
        await run_job(rl_jobs.job(tmp_path / "train", base_model=tmp_path / "missing"), fork=fork)


@pytest.mark.slow
@pytest.mark.parametrize("fork", [False, True])
async def test_cancelling_ends_the_child_without_a_result(tmp_path: Path, fork: bool) -> None:
    await real_sandboxes().close()
    job = rl_jobs.job(tmp_path / "train", contract=RlContract(updates=500, prompts_per_batch=2, attempts=2))
    begun = asyncio.Event()
    task = asyncio.ensure_future(run_job(job, lambda event: begun.set(), fork=fork))
    await asyncio.wait_for(begun.wait(), 120)
    (child,) = writers_of(job.folder / "progress.jsonl")
    assert child != os.getpid()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{child}").exists()
    assert "stopped by a signal" in (job.folder / "log.txt").read_text()
    assert not (job.folder / "result.json").exists()
    assert not (job.folder / "export").exists()


def writers_of(path: Path) -> set[int]:
    """The processes that have a file open."""
    found: set[int] = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == path:
                found.add(int(link.parts[2]))
        except OSError:
            continue
    return found
