"""A fixed panel of token sequences, scored by trainer, rollout engine and loaded export (EXP-03).

The trainer scores it twice: with its own float32 weights, and with the same weights rounded to the export's
dtype. A faithful export reproduces the second to numerical noise; the distance to the first is what rounding
costs, and is reported. Then the rollout engine, with the rounded weights too, says something of its own: how
probable it held that is compared with both, so that all three are known to be one policy.
Must not know episodes or rewards.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from broker.model import Completion, Sampling
from rl.embedded.scoring import row_logprobs
from rl.errors import ExportRefused
from rl.job_spec import PanelGaps
from rl.rows import Row, TrajectoryId

PANEL_TOKENS = 96
"""Longest panel sequence."""
SPOKEN_TOKENS = 16
"""What the rollout engine says to each panel sequence, at most."""
PANEL_TOLERANCE = 1e-3
"""Largest allowed difference in log-probability between any two of trainer (rounded weights), rollout engine
and loaded export, all computed in float32. Measured on a 135 M Llama between trainer and export: 0.0 with the
same thread count, 2.5e-5 otherwise."""
NARROW_FACTOR, NARROW_FLOOR = 2.5, 0.01
"""An engine in a narrower type, as SkyRL's is, holds the weights rounded to that type: steps of 1e-5 vanish
there. So its words are compared with the rounded weights, and their mean difference may be so many times what
the type itself makes of the same words. Measured on a 135 M Llama in bfloat16: the type makes 0.036, vLLM was
0.055 off, and 0.115 off the weights before rounding, which says nothing about the engine."""

Scores = tuple[tuple[float, ...], ...]


class Spoken(BaseModel):
    """What the rollout engine said to one sequence, and what it and the trainer made of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    engine: tuple[float, ...]
    """Log-probability of each completion token, as sampled."""
    trainer: tuple[float, ...]


class Narrow(BaseModel):
    """What was spoken, as the trainer's weights score it once they are rounded to the engine's type."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: str
    """In which the rollout engine computes."""
    scores: Scores
    """Computed in float32."""
    noise: float
    """Mean difference that computing in `dtype` makes, the weights being equal."""


class Panel(BaseModel):
    """Sequences and the log-probability of each token but the first, given those before it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequences: tuple[tuple[int, ...], ...]
    full: Scores
    """By the trainer, float32 weights."""
    rounded: Scores
    """By the trainer, weights rounded to the export's dtype."""
    spoken: tuple[Spoken, ...] = ()
    """By the rollout engine, rounded weights."""
    narrow: Narrow | None = None
    """Where the rollout engine computes in a narrower type than float32."""

    def rounding_gap(self) -> float:
        """Largest change of a log-probability by rounding the weights."""
        return _largest_gap(self.full, self.rounded)

    def engine_gap(self) -> float:
        """Largest difference between trainer and rollout engine."""
        return _largest_gap([item.engine for item in self.spoken], [item.trainer for item in self.spoken])


class Speaker(Protocol):
    """The rollout engine: gives a future of one completion."""

    def submit(self, prompt_ids: Sequence[int], sampling: Sampling) -> "Any": ...


def score_panel(model: nn.Module, sequences: Sequence[Sequence[int]]) -> Scores:
    """Log-probabilities of each sequence's tokens after the first, one plain forward pass each."""
    return _score(model, [(tuple(ids[:1]), tuple(ids[1:])) for ids in sequences])


def _score(model: nn.Module, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Scores:
    with torch.no_grad():
        return tuple(
            tuple(float(value) for value in row_logprobs(model, _panel_row(prompt, completion)))
            for prompt, completion in pairs
        )


def _panel_row(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Row:
    size = len(completion)
    return Row(
        prompt_ids=prompt,
        completion_ids=completion,
        rollout_logprobs=(0.0,) * size,
        loss_mask=(1,) * size,
        rewards=(0.0,) * size,
        trajectory=TrajectoryId("panel", 0),
        is_last=True,
    )


@torch.no_grad()
def make_panel(model: nn.Module, sequences: Sequence[Sequence[int]], dtype: str) -> Panel:
    """Score with the trainer. Leaves the weights rounded to `dtype`: call it after the last update."""
    cut = _cut(sequences)
    full = score_panel(model, cut)
    target = cast("torch.dtype", getattr(torch, dtype))
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(value.to(target))
    return Panel(sequences=cut, full=full, rounded=score_panel(model, cut))


def hear_engine(panel: Panel, engine: Speaker, model: nn.Module, *, longest: int) -> Panel:
    """The panel with what the engine says to each sequence; it must be serving `model`, already rounded.

    `longest`: prompt plus completion that the engine takes.
    """
    prompts, said = ask_engine(engine, panel.sequences, longest=longest)
    return add_spoken(panel, prompts, said, model)


def ask_engine(
    engine: Speaker, sequences: Sequence[Sequence[int]], *, longest: int
) -> tuple[list[tuple[int, ...]], list[Completion]]:
    """What an engine is asked, cut from the sequences, and what it says at temperature 1."""
    prompts = [ids[: max(1, longest - SPOKEN_TOKENS)] for ids in _cut(sequences)]
    waiting = [
        engine.submit(ids, Sampling(temperature=1.0, seed=number, max_tokens=SPOKEN_TOKENS))
        for number, ids in enumerate(prompts)
    ]
    return prompts, [future.result() for future in waiting]


def _cut(sequences: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(ids[:PANEL_TOKENS]) for ids in sequences if len(ids) > 1)


def add_spoken(
    panel: Panel, prompts: Sequence[tuple[int, ...]], said: Sequence[Completion], model: nn.Module
) -> Panel:
    """The panel with what an engine said to each prompt; `model` has the trainer's rounded weights."""
    pairs = [(prompt, completion.token_ids) for prompt, completion in zip(prompts, said, strict=True)]
    spoken = tuple(
        Spoken(prompt_ids=prompt, completion_ids=ids, engine=completion.logprobs, trainer=scores)
        for (prompt, ids), completion, scores in zip(pairs, said, _score(model, pairs), strict=True)
    )
    return panel.model_copy(update={"spoken": spoken})


@torch.no_grad()
def score_narrow(
    model: nn.Module, prompts: Sequence[tuple[int, ...]], said: Sequence[Completion], dtype: str
) -> Narrow:
    """What an engine that computes in `dtype` can know of the model, on what it said to each prompt.

    Leaves the model in float32, with its weights rounded.
    """
    pairs = [(prompt, completion.token_ids) for prompt, completion in zip(prompts, said, strict=True)]
    computed = _score(model.to(cast("torch.dtype", getattr(torch, dtype))), pairs)
    rounded = _score(model.float(), pairs)
    return Narrow(dtype=dtype, scores=rounded, noise=_mean_gap(computed, rounded))


def read_panel(path: Path) -> Panel:
    return Panel.model_validate_json(path.read_bytes())


def check_panel(panel: Panel, model: Any, tolerance: float = PANEL_TOLERANCE) -> PanelGaps:
    """Score with the loaded export; the gaps, or `ExportRefused` for one above the tolerance."""
    heard = _score(model, [(item.prompt_ids, item.completion_ids) for item in panel.spoken])
    sequences = score_panel(model, panel.sequences)
    said = tuple(item.engine for item in panel.spoken)
    gaps = PanelGaps(
        trainer_export=_largest_gap(
            [*panel.rounded, *(item.trainer for item in panel.spoken)], [*sequences, *heard]
        ),
        engine_export=_largest_gap(said, heard),
        trainer_engine=panel.engine_gap(),
        engine_mean=None if panel.narrow is None else _check_narrow(said, panel.narrow),
    )
    judged = [gaps.trainer_export]
    if panel.narrow is None:
        judged += [gaps.engine_export, gaps.trainer_engine]
    # Asked this way, NaN is not agreement.
    if not all(gap <= tolerance for gap in judged):
        raise ExportRefused(
            "panel",
            f"log-probabilities differ by {gaps.trainer_export:.2g} between trainer and export, "
            f"{gaps.engine_export:.2g} between rollout engine and export, {gaps.trainer_engine:.2g} between "
            f"trainer and rollout engine; allowed {tolerance:g}",
        )
    return gaps


def _check_narrow(said: Scores, narrow: Narrow) -> float:
    gap = _mean_gap(said, narrow.scores)
    allowed = NARROW_FACTOR * narrow.noise + NARROW_FLOOR
    if not gap <= allowed:
        raise ExportRefused(
            "panel",
            f"the rollout engine and the trainer's weights in its type, {narrow.dtype}, differ by {gap:.2g} "
            f"in mean log-probability, allowed {allowed:.2g}: it served another model",
        )
    return gap


def _gaps(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> list[float]:
    return [
        abs(one - other)
        for ours, theirs in zip(left, right, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    ]


def _mean_gap(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    gaps = _gaps(left, right)
    return sum(gaps) / max(len(gaps), 1)


def _largest_gap(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    gaps = _gaps(left, right)
    # `max` alone would lose a NaN that is not the first.
    return float("nan") if any(gap != gap for gap in gaps) else max(gaps, default=0.0)
