"""The mathematics of GRPO: advantages, their broadcast, the clipped loss. Pure functions on tensors.

One reading difference to SkyRL, on purpose: SkyRL recomputes the old log-probabilities with its trainer
before the step and takes the ratio against those; the paper's objective and this trainer take it against
the recorded rollout log-probabilities (RL-10). With the embedded engine the two differ by about 1e-5. Both
backends give the same numbers when they are handed the same old log-probabilities.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl.rows import Row

LOG_RATIO_LIMIT = 20.0
"""Log ratios are clamped here before `exp`, as SkyRL does, so that one broken token cannot overflow."""


def group_advantages(rewards: Sequence[float], instances: Sequence[str], delta: float = 1e-6) -> list[float]:
    """A_i = (R_i - mean) / (std + delta) with the unbiased std, inside each instance (RL-08).

    A group whose rewards are all equal has advantage 0. A group of one follows SkyRL's documented fallback,
    mean 0 and std 1, hence A = R / (1 + delta).
    """
    groups: dict[str, list[float]] = {}
    for reward, instance in zip(rewards, instances, strict=True):
        groups.setdefault(instance, []).append(reward)
    moments = {instance: _moments(values) for instance, values in groups.items()}
    advantages: list[float] = []
    for reward, instance in zip(rewards, instances, strict=True):
        mean, deviation = moments[instance]
        advantages.append((reward - mean) / (deviation + delta))
    return advantages


def _moments(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return 0.0, 1.0
    if min(values) == max(values):
        # Exact: a rounded mean would leave noise that the tiny std + delta blows up.
        return values[0], 0.0
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std())


def row_advantages(rows: Sequence[Row], delta: float = 1e-6) -> list[float]:
    """One advantage per row: computed from last rows only, broadcast to all calls of the episode (RL-09).

    Rewards on earlier rows are not looked at. Placeholders take part in their group's mean and std.
    """
    last = [row for row in rows if row.is_last]
    advantages = group_advantages(
        [sum(row.rewards) for row in last], [row.trajectory.instance for row in last], delta
    )
    by_trajectory = {row.trajectory: value for row, value in zip(last, advantages, strict=True)}
    return [by_trajectory[row.trajectory] for row in rows]


def zero_variance_groups(rows: Sequence[Row]) -> int:
    """Groups whose attempts all earned the same reward: they give no gradient."""
    groups: dict[str, set[float]] = {}
    for row in rows:
        if row.is_last:
            groups.setdefault(row.trajectory.instance, set()).add(sum(row.rewards))
    return sum(1 for values in groups.values() if len(values) == 1)


@dataclass(frozen=True, kw_only=True)
class LossParts:
    """The loss of some tokens of a batch, with sums that add up over micro-batches."""

    loss: Tensor
    """Scalar with gradient: the tokens' share of the batch's token mean."""
    clipped_tokens: Tensor
    """Scalar: valid tokens at which the clipped branch is the active one."""
    gap_sum: Tensor
    """Scalar: sum of |log-probability - old log-probability| over valid tokens."""
    gap_max: Tensor


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    batch_tokens: int,
) -> LossParts:
    """-sum(min(r A, clip(r, 1 - low, 1 + high) A) over valid tokens) / batch_tokens (RL-10).

    All tensors have one shape; `mask` is 1 at valid tokens. `batch_tokens` is the number of valid tokens of
    the whole batch, so that losses of micro-batches simply add up to the token mean.
    """
    valid = mask > 0
    # `where` instead of a product: a masked position stays out even if it holds infinity or NaN.
    log_ratio = torch.where(valid, logprobs - old_logprobs, torch.zeros_like(logprobs))
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    surrogate = torch.where(valid, torch.minimum(plain, clipped), torch.zeros_like(plain))
    gap = log_ratio.detach().abs()
    return LossParts(
        loss=-surrogate.sum() / max(batch_tokens, 1),
        clipped_tokens=((clipped < plain) & valid).sum(),
        gap_sum=gap.sum(),
        gap_max=gap.max() if gap.numel() else gap.sum(),
    )
