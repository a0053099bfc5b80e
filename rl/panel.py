"""A fixed panel of token sequences, scored by the trainer and again by the loaded export (EXP-03).

The trainer scores it twice: with its own float32 weights, and with the same weights rounded to the export's
dtype. A faithful export reproduces the second to numerical noise; the distance to the first is what rounding
costs, and is reported.
Must not know episodes or rewards.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from rl.embedded.scoring import row_logprobs
from rl.errors import ExportRefused
from rl.rows import Row, TrajectoryId

PANEL_TOKENS = 96
"""Longest panel sequence."""
PANEL_TOLERANCE = 1e-3
"""Largest allowed difference in log-probability between trainer (rounded weights) and loaded export, both
computed in float32. Measured on a 135 M Llama: 0.0 with the same thread count, 2.5e-5 otherwise."""


class Panel(BaseModel):
    """Sequences and the log-probability of each token but the first, given those before it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequences: tuple[tuple[int, ...], ...]
    full: tuple[tuple[float, ...], ...]
    """By the trainer, float32 weights."""
    rounded: tuple[tuple[float, ...], ...]
    """By the trainer, weights rounded to the export's dtype."""

    def rounding_gap(self) -> float:
        """Largest change of a log-probability by rounding the weights."""
        return _largest_gap(self.full, self.rounded)


def score_panel(model: nn.Module, sequences: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities of each sequence's tokens after the first, one plain forward pass each."""
    with torch.no_grad():
        return tuple(
            tuple(float(value) for value in row_logprobs(model, _panel_row(tuple(ids)))) for ids in sequences
        )


def _panel_row(ids: tuple[int, ...]) -> Row:
    size = len(ids) - 1
    return Row(
        prompt_ids=ids[:1],
        completion_ids=ids[1:],
        rollout_logprobs=(0.0,) * size,
        loss_mask=(1,) * size,
        rewards=(0.0,) * size,
        trajectory=TrajectoryId("panel", 0),
        is_last=True,
    )


@torch.no_grad()
def make_panel(model: nn.Module, sequences: Sequence[Sequence[int]], dtype: str) -> Panel:
    """Score with the trainer. Leaves the weights rounded to `dtype`: call it after the last update."""
    cut = tuple(tuple(ids[:PANEL_TOKENS]) for ids in sequences if len(ids) > 1)
    full = score_panel(model, cut)
    target = cast("torch.dtype", getattr(torch, dtype))
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(value.to(target))
    return Panel(sequences=cut, full=full, rounded=score_panel(model, cut))


def read_panel(path: Path) -> Panel:
    return Panel.model_validate_json(path.read_bytes())


def check_panel(panel: Panel, model: Any, tolerance: float = PANEL_TOLERANCE) -> float:
    """Score with the loaded export; the largest gap, or `ExportRefused` above the tolerance."""
    gap = _largest_gap(panel.rounded, score_panel(model, panel.sequences))
    if not gap <= tolerance:
        raise ExportRefused(
            "panel",
            f"trainer and export differ by {gap:.2g} in log-probability, allowed {tolerance:g}",
        )
    return gap


def _largest_gap(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    pairs = [
        (one, other)
        for ours, theirs in zip(left, right, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    ]
    return max((abs(one - other) for one, other in pairs), default=0.0)
