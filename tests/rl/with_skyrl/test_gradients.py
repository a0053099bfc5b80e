"""One batch through a model: the embedded trainer's gradient is that of SkyRL's loss (RL-10)."""

from types import SimpleNamespace
from typing import Any

import pytest
import rl_jobs
import torch
from rl_samples import RIGHT, WRONG, call, episode
from transformers import AutoModelForCausalLM

from rl.contract import RlContract
from rl.embedded.scoring import row_logprobs
from rl.embedded.trainer import Trainer
from rl.rows import Row, RowBatch, TrajectoryId, build_rows
from tests.rl.with_skyrl.bare import training_input
from tests.rl.with_skyrl.in_process import InProcessDispatch

TASKS, ATTEMPTS = ("a", "b"), 4
LIMIT = 1e-6


def load() -> Any:
    return AutoModelForCausalLM.from_pretrained(rl_jobs.base_model(), dtype=torch.float32).eval()


def batch(seed: int, model: Any) -> RowBatch:
    """Episodes of one to three calls over random ids, old log-probabilities a little off the policy's own."""
    draw = torch.Generator().manual_seed(seed)

    def ids(most: int) -> tuple[int, ...]:
        size = int(torch.randint(1, most, (1,), generator=draw))
        return tuple(torch.randint(130, 380, (size,), generator=draw).tolist())

    def one_call(index: int) -> Any:
        prompt, completion = ids(20), ids(9)
        row = Row(
            prompt_ids=prompt,
            completion_ids=completion,
            rollout_logprobs=(0.0,) * len(completion),
            loss_mask=(1,) * len(completion),
            rewards=(0.0,) * len(completion),
            trajectory=TrajectoryId("x", 0),
            is_last=True,
        )
        with torch.no_grad():
            own = row_logprobs(model, row)
        old = (own + 0.3 * (torch.rand(own.shape, generator=draw) - 0.5)).clamp(max=0.0)
        return call(index, prompt, completion, old.tolist())

    found = [
        episode(
            name, number, [one_call(index) for index in range(1 + number % 3)], RIGHT if number < 2 else WRONG
        )
        for name in TASKS
        for number in range(ATTEMPTS)
    ]
    return build_rows(found, TASKS, ATTEMPTS)


def skyrls(rows: RowBatch) -> dict[str, torch.Tensor]:
    """SkyRL's conversion, advantages, reduction and loss on its in-process worker."""
    trainer, data = training_input(rows, TASKS)
    # SkyRL takes the ratio against log-probabilities of its own; both sides are given the same here.
    data["action_log_probs"] = data["rollout_logprobs"]
    data = trainer._normalize_advantages(data, data.metadata["policy_mini_batch_boundaries"])
    worker = InProcessDispatch.__new__(InProcessDispatch)
    worker.cfg, worker.batches, worker.client = trainer.cfg, [], SimpleNamespace()
    worker.model = load()
    worker.forward_backward_from_staged("policy", data)
    return {name: value.grad for name, value in worker.model.named_parameters()}


@pytest.mark.spec("RL-10")
@pytest.mark.parametrize("packing", ["tree", "flat", "rows"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_embedded_trainers_gradient_equals_skyrls(packing: Any, seed: int) -> None:
    model = load()
    rows = batch(seed, model)
    trainer = Trainer(model, RlContract(), packing=packing, token_budget=64)
    trainer.accumulate(rows)
    ours = {name: value.grad for name, value in model.named_parameters()}
    theirs = skyrls(rows)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value is not None
        assert float((value - theirs[name]).abs().max()) <= LIMIT, name
    # Large enough that a wrong reduction or mask would show.
    assert max(float(value.abs().max()) for value in theirs.values()) > 1e3 * LIMIT
