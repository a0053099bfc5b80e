"""Advantages, token-mean loss and gradients equal SkyRL's within 1e-6, on batches drawn at random (RL-10).

SkyRL's side is its own code: conversion to tensors, GRPO over last steps, loss reduction, policy loss, all in
float32. Ours is `rl.grpo`, in float64.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from test_rl_row_invariants import ATTEMPTS, TASKS, Results, results

from rl.grpo import policy_loss, row_advantages
from rl.rows import Row, RowBatch, build_rows
from tests.rl.with_skyrl.bare import training_input

LIMIT = 1e-6


def batch_of(found: Results) -> RowBatch:
    return build_rows(found, TASKS, ATTEMPTS)


def at_tokens(tensor: torch.Tensor, row: Row) -> torch.Tensor:
    """A row's completion tokens: SkyRL keeps them at the right end."""
    return tensor[-len(row.completion_ids) :]


def largest_gap(batch: RowBatch, advantages: torch.Tensor) -> float:
    """Over every masked-in token of every call, between SkyRL's advantages and ours."""
    gaps = [
        float((at_tokens(theirs, row).double() - ours).abs().max())
        for row, theirs, ours in zip(batch.rows, advantages, row_advantages(batch.rows), strict=True)
        if row.trainable
    ]
    return max(gaps)


@pytest.mark.spec("RL-08", "RL-09", "RL-10")
@settings(max_examples=60, deadline=None)
@given(results())
def test_advantages_equal_skyrls_on_every_masked_in_token_of_every_call(found: Results) -> None:
    batch = batch_of(found)
    _, data = training_input(batch, TASKS)
    assert largest_gap(batch, data["advantages"]) <= LIMIT


def copied_last_mask(data: Any) -> torch.Tensor:
    """What SkyRL did before 0.2: the last call's masked advantages, copied to the earlier calls."""
    last = torch.tensor(data.metadata["is_last_step"])
    scores = data["advantages"][last]
    which = torch.cat([torch.tensor([False]), last[:-1]]).int().cumsum(0)
    return scores[which]


@pytest.mark.spec("RL-09", "RL-10")
def test_the_variant_that_copies_the_last_calls_mask_fails_the_same_comparison() -> None:
    from rl_samples import RIGHT, WRONG, call, episode

    def long_then_short(name: str, number: int, verdict: Any) -> Any:
        calls = [
            call(0, [1], [2, 3, 4, 5], [-1.0] * 4),
            call(1, [1, 2], [6], [-1.0]),
        ]
        return episode(name, number, calls, verdict)

    found: Results = [
        long_then_short(name, number, RIGHT if number == 0 else WRONG)
        for name in TASKS
        for number in range(ATTEMPTS)
    ]
    batch = batch_of(found)
    _, data = training_input(batch, TASKS)
    assert largest_gap(batch, data["advantages"]) <= LIMIT
    # The first three tokens of each first call get no advantage at all.
    assert largest_gap(batch, copied_last_mask(data)) > 0.5


@pytest.mark.spec("RL-10")
@settings(max_examples=40, deadline=None)
@given(results(), st.integers(0, 2**31))
def test_token_mean_loss_and_its_gradient_equal_skyrls(found: Results, seed: int) -> None:
    batch = batch_of(found)
    trainer, data = training_input(batch, TASKS)
    draw = torch.Generator().manual_seed(seed)
    shape = data["loss_mask"].shape
    old = -3 * torch.rand(shape, generator=draw)
    new = (old + 0.6 * (torch.rand(shape, generator=draw) - 0.5)).requires_grad_()
    boundaries = data.metadata["policy_mini_batch_boundaries"]
    assert boundaries == [(0, len(batch.rows))]
    data = trainer._normalize_advantages(data, boundaries)
    algorithm = trainer.cfg.trainer.algorithm
    size = trainer.cfg.trainer.micro_train_batch_size_per_gpu
    theirs = torch.zeros(())
    for start in range(0, len(batch.rows), size):
        part = slice(start, start + size)
        loss, _ = PolicyLossRegistry.get(algorithm.policy_loss_type)(
            new[part],
            old[part],
            data["advantages"][part],
            config=algorithm,
            loss_mask=data["loss_mask"][part],
            rollout_logprobs=data["rollout_logprobs"][part],
        )
        theirs = theirs + loss
    (their_gradient,) = torch.autograd.grad(theirs, new)

    flat_new = torch.cat([at_tokens(values, row) for values, row in zip(new, batch.rows, strict=True)])
    flat_new = flat_new.detach().double().requires_grad_()
    advantages = [
        value
        for row, value in zip(batch.rows, row_advantages(batch.rows), strict=True)
        for _ in row.completion_ids
    ]
    ours = policy_loss(
        flat_new,
        torch.cat([at_tokens(values, row) for values, row in zip(old, batch.rows, strict=True)]).double(),
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor([float(mask) for row in batch.rows for mask in row.loss_mask], dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.2,
        batch_tokens=batch.trainable_tokens,
    ).loss
    (our_gradient,) = torch.autograd.grad(ours, flat_new)
    assert float(theirs.detach()) == pytest.approx(float(ours), abs=LIMIT)
    found_gradient = torch.cat(
        [at_tokens(values, row) for values, row in zip(their_gradient, batch.rows, strict=True)]
    )
    assert float((found_gradient.double() - our_gradient).abs().max()) <= LIMIT
