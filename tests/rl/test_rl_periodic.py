"""Val between updates, with the real engine and trainer: measured, and of no effect (RL-11, SCHED-09)."""

import json
from pathlib import Path

import pytest
import rl_jobs

from rl.contract import RlContract
from rl.embedded.job import train
from rl.job_spec import PROGRESS, JobResult
from rl.services import Progress, open_broker, open_engine
from tests.fixtures.episodes import release
from tests.fixtures.fake_sandbox import FakeFactory


async def trained(folder: Path, every: int) -> JobResult:
    contract = RlContract(
        updates=2, prompts_per_batch=2, attempts=3, learning_rate=1e-3, evaluate_every=every
    )
    job = rl_jobs.job(folder, contract=contract, concurrency=1)
    folder.mkdir(parents=True)
    engine = open_engine(job, rl_jobs.base_model())
    try:
        async with open_broker(job, engine, rl_jobs.base_model(), FakeFactory()) as broker:
            return await train(job, engine, broker, Progress(folder))
    finally:
        engine.close()


@pytest.mark.spec("RL-11", "SCHED-09", "SEL-03")
async def test_val_between_updates_is_complete_and_leaves_the_training_as_it_was(tmp_path: Path) -> None:
    plain, watched = await trained(tmp_path / "plain", 0), await trained(tmp_path / "watched", 1)
    assert plain.evaluations == ()
    assert [point.update for point in watched.evaluations] == [0, 1, 2]
    for point in watched.evaluations:
        assert point.evaluation is not None
        assert (point.evaluation.split, point.evaluation.seed) == ("val", 1)
        assert point.evaluation.total == len(release().split("val"))
    assert plain.model == watched.model, "the same weights, watched or not"
    assert [report.reward for report in plain.updates] == [report.reward for report in watched.updates]
    lines = [json.loads(line) for line in (tmp_path / "plain" / PROGRESS).read_text().splitlines()]
    assert "evaluation" not in {line["event"] for line in lines}
