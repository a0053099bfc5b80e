"""A phase whose model computes in bfloat16, as on a GPU: here on the CPU, by a loader that narrows it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rl_jobs
import torch
from safetensors.torch import load_file

from broker.engine import engine as engine_module
from broker.engine.engine import EmbeddedEngine
from rl.contract import RlContract
from rl.embedded.job import run, train
from rl.embedded.publish import widen
from rl.embedded.trainer import Trainer
from rl.errors import TrainingError
from rl.job_spec import Job, JobResult
from rl.manifest import read_manifest
from rl.panel import NARROW_FACTOR, NARROW_FLOOR, check_panel, read_panel
from rl.services import Progress, open_broker, open_engine
from tests.fixtures.fake_sandbox import FakeFactory

RATE = 1e-6


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedEngine]:
    load = engine_module.load_model

    def narrow(*args: Any, **options: Any) -> Any:
        model, geometry = load(*args, **options)
        return model.to(torch.bfloat16), geometry

    monkeypatch.setattr(engine_module, "load_model", narrow)
    opened = open_engine(rl_jobs.job(tmp_path), rl_jobs.base_model())
    yield opened
    opened.close()


async def trained(job: Job, engine: EmbeddedEngine) -> JobResult:
    job.folder.mkdir(parents=True)
    async with open_broker(job, engine, rl_jobs.base_model(), FakeFactory()) as broker:
        return await train(job, engine, broker, Progress(job.folder))


@pytest.mark.spec("RL-10", "EXP-01", "EXP-03")
async def test_what_a_bfloat16_phase_exports_are_its_float32_masters(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    contract = RlContract(updates=2, prompts_per_batch=4, attempts=4, learning_rate=RATE)
    result = await trained(rl_jobs.job(tmp_path / "job", contract=contract), engine)
    assert all(report.skipped is None and report.gradient_norm for report in result.updates)
    base = load_file(rl_jobs.base_model() / "model.safetensors")
    export = load_file(result.export / "model.safetensors")
    assert read_manifest(result.export).dtype == "float32"
    # Steps of 1e-6 are far below what bfloat16 can tell apart from most weights; the masters kept them.
    moved = [(export[name] - base[name].bfloat16().float()).abs() for name in base]
    assert max(float(change.max()) for change in moved) < 4 * RATE
    assert sum(int((change > 0).sum()) for change in moved) > 0.5 * sum(value.numel() for value in moved)


@pytest.mark.spec("EXP-03")
async def test_the_panel_of_a_bfloat16_phase_is_judged_in_the_precision_of_each_side(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    result = await trained(rl_jobs.job(tmp_path / "job"), engine)
    panel = read_panel(result.panel)
    assert panel.narrow is not None
    assert panel.narrow.dtype == "bfloat16"
    assert panel.narrow.noise > 0
    assert len(panel.spoken) == len(panel.sequences) > 0
    gaps = check_panel(panel, engine.model)
    assert gaps.trainer_export == 0.0
    assert gaps.engine_mean is not None
    assert 0 < gaps.engine_mean < NARROW_FACTOR * panel.narrow.noise + NARROW_FLOOR


def test_widening_gives_the_masters_themselves_to_the_model(engine: EmbeddedEngine) -> None:
    trainer = Trainer(engine.model, RlContract())
    masters = trainer.optimiser.masters
    widen(engine.model, masters)
    for name, value in engine.model.named_parameters():
        assert value.dtype == torch.float32
        assert value.data_ptr() == masters[name].data_ptr()


def test_a_float32_models_masters_are_its_own_weights(tmp_path: Path) -> None:
    opened = open_engine(rl_jobs.job(tmp_path), rl_jobs.base_model())
    assert Trainer(opened.model, RlContract()).optimiser.masters == {}
    opened.close()


async def test_bfloat16_on_a_cpu_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.embedded.job.open_sandboxes", lambda setup: FakeFactory())
    job = rl_jobs.job(tmp_path / "job", precision="bfloat16")
    with pytest.raises(TrainingError, match="precision=bfloat16 needs a GPU"):
        await run(job)
    assert not (job.folder / "result.json").exists()
    # A CPU that multiplies in bfloat16 would do so for the rest of this process.
    assert torch.get_float32_matmul_precision() == "highest"
