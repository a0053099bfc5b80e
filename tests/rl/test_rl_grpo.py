import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_samples import row

from rl.grpo import group_advantages, policy_loss, row_advantages, zero_variance_groups


@pytest.mark.spec("RL-08")
def test_advantages_by_hand() -> None:
    # Rewards 1 0 0 0: mean 1/4, unbiased std 1/2, hence 1.5 and -0.5.
    assert group_advantages([1, 0, 0, 0], ["a"] * 4) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    # delta counts: (1 - 1/2) / (sqrt(1/2) + 1/2).
    assert group_advantages([1, 0], ["a", "a"], delta=0.5)[0] == pytest.approx(0.5 / (math.sqrt(0.5) + 0.5))


@pytest.mark.spec("RL-08")
def test_an_all_equal_group_has_exactly_zero_advantage_and_a_group_of_one_follows_the_fallback() -> None:
    assert group_advantages([0.1] * 7, ["a"] * 7) == [0.0] * 7
    assert group_advantages([1.0, 0.0], ["a", "b"]) == pytest.approx([1 / (1 + 1e-6), 0.0])


@pytest.mark.spec("RL-08")
@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1, width=32)), min_size=1, max_size=24),
)
def test_advantages_equal_a_plain_numpy_derivation(pairs: list[tuple[str, float]]) -> None:
    names = [name for name, _ in pairs]
    rewards = [value for _, value in pairs]
    expected = []
    for name, value in pairs:
        group = np.array([other for key, other in pairs if key == name])
        if len(group) == 1:
            expected.append(value / (1 + 1e-6))
        elif np.ptp(group) == 0:
            expected.append(0.0)
        else:
            expected.append((value - group.mean()) / (group.std(ddof=1) + 1e-6))
    assert group_advantages(rewards, names) == pytest.approx(expected, abs=1e-6)


@pytest.mark.spec("RL-09", "RL-05")
def test_the_last_calls_advantage_reaches_all_calls_and_rewards_elsewhere_are_ignored() -> None:
    rows = [
        row([1], [2, 3], trajectory=("a", 0), is_last=False, reward=9.0),
        row([1], [4], trajectory=("a", 0), reward=1.0),
        row([1], [5], trajectory=("a", 1), reward=0.0),
    ]
    expected = math.sqrt(0.5)
    assert row_advantages(rows) == pytest.approx([expected, expected, -expected], abs=1e-5)


@pytest.mark.spec("RL-07")
def test_a_placeholder_takes_part_in_its_groups_mean_and_deviation() -> None:
    rows = [row([1], [2], trajectory=("a", number), reward=1.0) for number in range(3)]
    placeholder = row([0], [0], trajectory=("a", 3), mask=[0])
    assert row_advantages([*rows, placeholder])[0] == pytest.approx(0.5, abs=1e-5)


def test_groups_without_contrast_are_counted() -> None:
    rewards = {"a": (1, 1), "b": (0, 1), "c": (0, 0)}
    rows = [
        row([1], [2], trajectory=(name, number), reward=reward)
        for name, values in rewards.items()
        for number, reward in enumerate(values)
    ]
    assert zero_variance_groups(rows) == 2


def loss_of(logprobs: torch.Tensor, old: list[float], advantages: list[float], mask: list[float]):
    return policy_loss(
        logprobs,
        torch.tensor(old),
        torch.tensor(advantages),
        torch.tensor(mask),
        clip_low=0.2,
        clip_high=0.3,
        batch_tokens=int(sum(mask)),
    )


@pytest.mark.spec("RL-10")
def test_the_clipped_token_mean_by_hand() -> None:
    ratios = [1.0, 2.0, 2.0, 0.5, 0.5]
    advantages = [1.0, 1.0, -1.0, 1.0, -1.0]
    # min(rA, clip(r)A): 1, 1.3 (clipped), -2, 0.5, -0.8 (clipped); their mean is 0.
    parts = loss_of(torch.tensor(ratios).log(), [0.0] * 5, advantages, [1.0] * 5)
    assert float(parts.loss.detach()) == pytest.approx(-(1 + 1.3 - 2 + 0.5 - 0.8) / 5, abs=1e-6)
    assert parts.clipped_tokens == 2
    assert float(parts.gap_max) == pytest.approx(math.log(2))
    assert float(parts.gap_sum) == pytest.approx(4 * math.log(2)), "of either sign"


@pytest.mark.spec("RL-10")
def test_one_token_that_is_far_off_neither_overflows_nor_hides_the_others() -> None:
    logprobs = torch.tensor([200.0, 0.0]).requires_grad_()
    parts = loss_of(logprobs, [0.0, 0.0], [-1.0, 1.0], [1.0, 1.0])
    parts.loss.backward()
    # SkyRL's limit of the log ratio, 20.
    assert float(parts.loss.detach()) == pytest.approx((math.exp(20) - 1) / 2)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.5])


@pytest.mark.spec("RL-10")
def test_the_gradient_is_that_of_the_surrogate_and_zero_where_it_is_clipped() -> None:
    logprobs = torch.tensor([1.0, 2.0, 0.5]).log().requires_grad_()
    parts = loss_of(logprobs, [0.0] * 3, [1.0, 1.0, 2.0], [1.0] * 3)
    parts.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1 / 3, 0.0, -1 / 3])


@pytest.mark.spec("RL-10")
@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.floats(-2, 2), st.booleans()),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 5),
)
def test_micro_batches_add_up_to_a_plain_numpy_token_mean(
    tokens: list[tuple[float, float, float, bool]], parts: int
) -> None:
    new, old, advantage, mask = (np.array(column, dtype=np.float64) for column in zip(*tokens, strict=True))
    ratio = np.exp(new - old)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.3) * advantage)
    expected = -(surrogate * mask).sum() / max(mask.sum(), 1)
    total = 0.0
    for chunk in np.array_split(np.arange(len(tokens)), parts):
        arrays = [torch.from_numpy(column[chunk]) for column in (new, old, advantage, mask)]
        loss = policy_loss(*arrays, clip_low=0.2, clip_high=0.3, batch_tokens=int(mask.sum())).loss
        total += float(loss)
    assert total == pytest.approx(expected, abs=1e-9)


@pytest.mark.spec("RL-06")
def test_masked_tokens_change_neither_loss_nor_gradient_whatever_they_hold() -> None:
    values = []
    for other in (-1.0, 5.0, -math.inf, math.nan):
        logprobs = torch.tensor([-0.5, other, -0.7]).requires_grad_()
        parts = loss_of(logprobs, [-0.6, 0.0, -0.6], [1.0, 3.0, -1.0], [1.0, 0.0, 1.0])
        parts.loss.backward()
        assert logprobs.grad is not None
        values.append((float(parts.loss.detach()), float(parts.gap_sum), logprobs.grad.tolist()))
        assert logprobs.grad[1] == 0.0
    assert all(value == values[0] for value in values)
