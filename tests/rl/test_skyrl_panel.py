"""The panel where the rollout engine computes in a narrower type than the trainer (EXP-03)."""

import math
from collections.abc import Callable

import pytest
import torch
from rl_samples import tiny_llama

from broker.model import Completion
from rl.errors import ExportRefused
from rl.panel import Panel, add_spoken, check_panel, make_panel

PROMPTS = ((1, 2, 3, 4), (5, 6, 7), (8, 9, 10, 11, 12))


def panel(engine_dtype: str, noise: Callable[[int], float]) -> Panel:
    """What an engine said that is off the trainer by `noise` of the token's number."""
    model = tiny_llama()
    made = make_panel(model, PROMPTS, "float32").model_copy(update={"engine_dtype": engine_dtype})
    ids = (20, 21, 22, 23)
    said = [Completion(token_ids=ids, logprobs=(-1.0,) * 4, finish_reason="stop") for _ in PROMPTS]
    exact = add_spoken(made, PROMPTS, said, model)
    spoken = tuple(
        item.model_copy(
            update={"engine": tuple(value + noise(number) for number, value in enumerate(item.trainer))}
        )
        for item in exact.spoken
    )
    return exact.model_copy(update={"spoken": spoken})


@pytest.mark.spec("EXP-03")
def test_an_engine_in_bfloat16_is_judged_by_its_mean_and_the_export_still_exactly() -> None:
    found = panel("bfloat16", lambda number: 0.12 if number == 0 else -0.01)
    gaps = check_panel(found, tiny_llama())
    assert gaps.trainer_export == 0.0
    assert gaps.engine_export == pytest.approx(0.12, abs=1e-5)
    assert gaps.engine_mean == pytest.approx(0.15 / 4, abs=1e-5)
    other = tiny_llama()
    with torch.no_grad():
        other.model.norm.weight.add_(0.01)
    with pytest.raises(ExportRefused, match="between trainer and export"):
        check_panel(found, other)


@pytest.mark.spec("EXP-03")
@pytest.mark.parametrize("off", [0.06, -0.06, math.nan])
def test_an_engine_that_serves_another_model_is_refused_in_any_type(off: float) -> None:
    with pytest.raises(ExportRefused, match=r"in bfloat16, and the export differ by"):
        check_panel(panel("bfloat16", lambda _: off), tiny_llama())
    with pytest.raises(ExportRefused, match="between rollout engine and export"):
        check_panel(panel("float32", lambda _: off), tiny_llama())


@pytest.mark.spec("EXP-03")
def test_an_engine_in_float32_is_judged_exactly() -> None:
    assert check_panel(panel("float32", lambda _: 1e-4), tiny_llama()).engine_mean is None
    with pytest.raises(ExportRefused, match="between rollout engine and export"):
        check_panel(panel("float32", lambda number: 0.002 * (number == 0)), tiny_llama())
