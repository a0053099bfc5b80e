"""The panel where the rollout engine computes in a narrower type than the trainer (EXP-03)."""

import math
from collections.abc import Callable

import pytest
import torch
from rl_samples import tiny_llama

from broker.model import Completion
from rl.errors import ExportRefused
from rl.panel import (
    NARROW_FACTOR,
    NARROW_FLOOR,
    Narrow,
    Panel,
    add_spoken,
    check_panel,
    make_panel,
    score_narrow,
)

PROMPTS = ((1, 2, 3, 4), (5, 6, 7), (8, 9, 10, 11, 12))
SAID = [Completion(token_ids=(20, 21, 22, 23), logprobs=(-1.0,) * 4, finish_reason="stop") for _ in PROMPTS]


def panel(narrow: Narrow | None, noise: Callable[[int], float]) -> Panel:
    """What an engine said that is off what it can know by `noise` of the token's number."""
    model = tiny_llama()
    exact = add_spoken(make_panel(model, PROMPTS, "float32"), PROMPTS, SAID, model)
    known = [item.trainer for item in exact.spoken] if narrow is None else narrow.scores
    spoken = tuple(
        item.model_copy(
            update={"engine": tuple(value + noise(number) for number, value in enumerate(scores))}
        )
        for item, scores in zip(exact.spoken, known, strict=True)
    )
    return exact.model_copy(update={"spoken": spoken, "narrow": narrow})


def in_bfloat16(step: float = 0.0) -> Narrow:
    """As a model knows itself in bfloat16, after its weights were moved."""
    model = tiny_llama()
    with torch.no_grad():
        for value in model.parameters():
            value += step
    return score_narrow(model, PROMPTS, SAID, "bfloat16")


@pytest.mark.spec("EXP-03")
def test_an_engine_in_bfloat16_is_judged_by_its_mean_and_the_export_still_exactly() -> None:
    narrow = in_bfloat16()
    allowed = NARROW_FACTOR * narrow.noise + NARROW_FLOOR
    found = panel(narrow, lambda number: 3 * allowed if number == 0 else 0.0)
    gaps = check_panel(found, tiny_llama())
    assert gaps.trainer_export == 0.0
    assert gaps.engine_mean == pytest.approx(0.75 * allowed, rel=1e-3)
    other = tiny_llama()
    with torch.no_grad():
        other.model.norm.weight.add_(0.01)
    with pytest.raises(ExportRefused, match="between trainer and export"):
        check_panel(found, other)


@pytest.mark.spec("EXP-03")
def test_steps_that_vanish_in_the_engines_type_are_no_other_model() -> None:
    model = tiny_llama()
    with torch.no_grad():
        for value in model.parameters():
            # Half of what bfloat16 can tell apart, and a little less.
            value.copy_(value.bfloat16().float() * (1 + 2**-10))
    moved = score_narrow(model, PROMPTS, SAID, "bfloat16")
    with torch.no_grad():
        before = tiny_llama()
        for value in before.parameters():
            value.copy_(value.bfloat16().float())
    assert moved.scores == score_narrow(before, PROMPTS, SAID, "bfloat16").scores


@pytest.mark.spec("EXP-03")
@pytest.mark.parametrize("off", [1.1, -1.1, math.nan])
def test_an_engine_that_serves_another_model_is_refused_in_any_type(off: float) -> None:
    narrow = in_bfloat16()
    allowed = NARROW_FACTOR * narrow.noise + NARROW_FLOOR
    with pytest.raises(ExportRefused, match=r"in its type, bfloat16, differ by .* it served another model"):
        check_panel(panel(narrow, lambda _: off * allowed), tiny_llama())
    with pytest.raises(ExportRefused, match="between rollout engine and export"):
        check_panel(panel(None, lambda _: off), tiny_llama())


@pytest.mark.spec("EXP-03")
def test_three_times_what_the_type_makes_and_a_little_is_too_much() -> None:
    narrow = in_bfloat16()
    assert narrow.noise > 0.02, "so that the factor is what decides"
    check_panel(panel(narrow, lambda _: 2 * narrow.noise), tiny_llama())
    with pytest.raises(ExportRefused, match="it served another model"):
        check_panel(panel(narrow, lambda _: 3 * narrow.noise + 0.01), tiny_llama())


@pytest.mark.spec("EXP-03")
def test_the_measure_of_what_a_type_makes_is_no_excuse_for_another_model() -> None:
    # An engine that serves weights moved by so much, beside what the trainer's own would say.
    heard, known = in_bfloat16(step=0.1), in_bfloat16()
    served = panel(heard, lambda _: 0.0).model_copy(update={"narrow": known})
    with pytest.raises(ExportRefused, match="it served another model"):
        check_panel(served, tiny_llama())


@pytest.mark.spec("EXP-03")
def test_an_engine_in_float32_is_judged_exactly() -> None:
    assert check_panel(panel(None, lambda _: 1e-4), tiny_llama()).engine_mean is None
    with pytest.raises(ExportRefused, match="between rollout engine and export"):
        check_panel(panel(None, lambda number: 0.002 * (number == 0)), tiny_llama())
