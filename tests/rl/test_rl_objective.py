"""Every number of the contract reaches the step: three updates against the objective written out plainly.

One step from zero moments is the same under any betas and nearly any scale of the gradient, so that a single
one would not show a missing clip, decay or moment.
"""

import copy
from dataclasses import replace

import pytest
import torch
from rl_samples import batch_of, parameters, row, sampled, tiny_llama
from transformers import LlamaForCausalLM

from rl.contract import RlContract
from rl.embedded.scoring import row_logprobs
from rl.embedded.trainer import Trainer
from rl.rows import Row, RowBatch

CONTRACT = RlContract(
    learning_rate=1e-2,
    clip_low=0.1,
    clip_high=0.3,
    max_grad_norm=0.05,
    weight_decay=0.5,
    advantage_delta=0.5,
)
SHIFTS = (0.0, 0.2, -0.2, 0.5, -0.5)
"""Of the rollout's log-probabilities: some ratios are inside the clip range, some beyond either side."""


def off_policy(model: LlamaForCausalLM, update: int) -> RowBatch:
    """Two tasks with one right attempt of three; other ids in each update."""
    rows = [
        row(
            [1, 2, 3 + update],
            [10 + update, 20 + 3 * number + attempt, 30],
            trajectory=(name, attempt),
            reward=float(attempt == number),
        )
        for number, name in enumerate("ab")
        for attempt in range(3)
    ]
    shifted = [
        replace(item, rollout_logprobs=tuple(value + SHIFTS[index % 5] for value in item.rollout_logprobs))
        for index, item in enumerate(sampled(model, rows))
    ]
    return batch_of(shifted, 3)


def written_out(model: LlamaForCausalLM, rows: tuple[Row, ...]) -> tuple[torch.Tensor, int]:
    """The loss of the batch, and how many of its tokens are clipped."""
    spread = (1 / 3) ** 0.5
    terms, clipped = [], 0
    for item in rows:
        advantage = (sum(item.rewards) - 1 / 3) / (spread + 0.5)
        ratio = (row_logprobs(model, item) - torch.tensor(item.rollout_logprobs)).exp()
        plain, bounded = ratio * advantage, ratio.clamp(0.9, 1.3) * advantage
        terms.append(torch.minimum(plain, bounded))
        clipped += int((bounded < plain).sum())
    return -torch.cat(terms).mean(), clipped


@pytest.mark.spec("RL-08", "RL-10")
@pytest.mark.parametrize("packing", ["tree", "flat", "rows"])
def test_three_updates_are_adamws_with_the_contracts_clips_decay_and_moments(packing: str) -> None:
    model = tiny_llama()
    reference = copy.deepcopy(model)
    trainer = Trainer(model, CONTRACT, packing=packing, token_budget=12)
    adam = torch.optim.AdamW(reference.parameters(), lr=1e-2, betas=(0.9, 0.999), weight_decay=0.5)
    start = parameters(model).clone()
    for update in range(3):
        batch = off_policy(model, update)
        metrics = trainer.step(batch)

        loss, clipped = written_out(reference, batch.rows)
        adam.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05))
        adam.step()
        assert norm > 1, "far above the largest norm that the contract allows"
        assert 0 < clipped < metrics.valid_tokens
        assert metrics.clip_share == pytest.approx(clipped / metrics.valid_tokens)
        assert metrics.loss == pytest.approx(float(loss.detach()), abs=1e-4)
        assert metrics.gradient_norm == pytest.approx(norm, rel=1e-3)
    moved = (parameters(reference) - start).abs().mean()
    assert float((parameters(model) - parameters(reference)).abs().mean()) < 1e-3 * float(moved)
