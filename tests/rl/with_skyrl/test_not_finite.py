"""Updates whose gradient is not finite: SkyRL's optimiser takes no step, and the third ends the phase."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from broker.template import ChatTemplate
from rl.contract import RlContract
from rl.errors import TrainingError
from rl.job_spec import PROGRESS
from rl.services import Progress, open_broker
from rl.skyrl.job import Stage, train
from rl.skyrl.model import SkyrlModel
from rl.skyrl.prompts import PromptRows
from tests.fixtures.fake_sandbox import FakeFactory
from tests.rl.with_skyrl.test_job import SMALL, skyrl_job


@pytest.mark.spec("RL-10")
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_skyrls_optimiser_takes_no_step_on_a_gradient_that_is_not_finite(
    flash_attn_stub: None, number: float
) -> None:
    """Why such an update is reported as skipped."""
    from skyrl.backends.skyrl_train.distributed.fsdp_strategy import FSDPStrategy

    strategy = FSDPStrategy.__new__(FSDPStrategy)
    strategy.max_norm = 1.0
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.0)
    for gradient, moved in ((number, False), (1.0, True)):
        for value in model.parameters():
            value.grad = torch.full_like(value, gradient)
        norm = strategy.optimizer_step(optimiser, model, SimpleNamespace(step=lambda: None))
        assert bool(torch.isfinite(norm)) == moved
        assert torch.equal(model.weight, before) != moved


@pytest.mark.spec("RL-10")
async def test_the_third_update_that_is_not_finite_ends_the_training(tmp_path: Path) -> None:
    contract = RlContract(**{**SMALL.model_dump(), "updates": 5})
    job = skyrl_job(tmp_path, "NotFiniteExperiment", contract=contract)
    progress = Progress(tmp_path)
    model = SkyrlModel(ChatTemplate.load(job.base_model).end_ids)
    async with open_broker(job, model, job.base_model, FakeFactory()) as broker:
        stage = Stage(
            job=job, prompts=PromptRows(job, broker.release), progress=progress, model=model, panel=()
        )
        with pytest.raises(TrainingError, match=r"3 updates were not finite \(loss .*, gradient norm nan; "):
            await train(stage, broker)
    progress.close()
    events = [json.loads(line) for line in (tmp_path / PROGRESS).read_text().splitlines()]
    updates = [event for event in events if event["event"] == "update"]
    assert [update["skipped"] for update in updates] == [None, "not_finite", "not_finite", "not_finite"]
    assert [update["gradient_norm"] is None for update in updates] == [False, True, True, True]
    assert stage.said == ()
