"""What SkyRL says of a step becomes the report of an update; no SkyRL is needed."""

import json
import math

import pytest
from rl_samples import RIGHT, WRONG, call, episode

from rl.contract import RlContract
from rl.errors import TrainingError
from rl.job_spec import UpdateReport
from rl.rollout import Rollout
from rl.rows import build_rows
from rl.skyrl.settings import SkyrlSettings
from rl.skyrl.updates import UpdateLog

NAMES = {
    "policy/policy_loss": -0.1,
    "policy/grad_norm": 2.0,
    "policy/loss_metrics/clip_ratio": 0.25,
    "policy/policy_entropy": 1.5,
    "policy/rollout_train_logprobs_abs_diff_mean": 0.01,
    "policy/rollout_train_logprobs_abs_diff_max": 0.5,
    "generate/batch_num_seq": 4,
    "generate/batch_padded_seq_len": 10,
    "timing/generate": 1.0,
    "timing/fwd_logprobs_values_reward": 2.0,
    "timing/train_critic_and_policy": 3.0,
    "timing/sync_weights": 4.0,
}


def rollout(*, contrast: bool = True) -> Rollout:
    """One task, two attempts of two calls."""
    calls = [call(0, [1, 2], [3, 4], [-1.0, -1.0]), call(1, [1, 2, 3], [5], [-1.0])]
    found = [episode("a", number, calls, RIGHT if contrast and number else WRONG) for number in range(2)]
    return Rollout(batch=build_rows(found, ["a"], 2), episodes=tuple(found), seconds=2.0)


def log(updates: int) -> tuple[UpdateLog, list[UpdateReport]]:
    seen: list[UpdateReport] = []
    contract = RlContract(updates=updates, prompts_per_batch=1, attempts=2)
    return UpdateLog(contract, SkyrlSettings(), seen.append), seen


def step(to: UpdateLog, number: int, *, contrast: bool = True, **changes: float) -> None:
    to.rollout(number, rollout(contrast=contrast))
    to.log({**NAMES, **{f"policy/{name}": value for name, value in changes.items()}}, number)


@pytest.mark.spec("RL-10")
def test_a_report_holds_skyrls_numbers_and_our_counts() -> None:
    to, seen = log(1)
    step(to, 1)
    [report] = seen
    assert (report.loss, report.gradient_norm, report.clip_share, report.entropy) == (-0.1, 2.0, 0.25, 1.5)
    assert (report.logprob_gap_mean, report.logprob_gap_max) == (0.01, 0.5)
    seconds = (report.seconds_generate, report.seconds_score, report.seconds_update, report.seconds_sync)
    assert seconds == (1.0, 2.0, 3.0, 4.0)
    assert (report.reward, report.episodes, report.model_calls) == (0.5, 2, 4)
    assert (report.valid_tokens, report.trained_tokens, report.generated_tokens) == (6, 6, 6)
    assert (report.zero_variance_groups, report.tokens_per_second) == (0, 3.0)
    assert report.skipped is None


def test_a_metric_that_a_version_has_renamed_is_told_at_the_first_update() -> None:
    to, _ = log(1)
    to.rollout(1, rollout())
    with pytest.raises(TrainingError, match=r"reports no timing/sync_weights: use a version"):
        to.log({name: value for name, value in NAMES.items() if name != "timing/sync_weights"}, 1)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_updates_that_are_not_finite_are_counted_and_the_third_ends_the_phase(number: float) -> None:
    to, seen = log(10)
    step(to, 1, policy_loss=math.nan, grad_norm=number)
    step(to, 2)
    step(to, 3, grad_norm=number)
    assert [report.skipped for report in seen] == ["not_finite", None, "not_finite"]
    assert (seen[0].loss, seen[0].gradient_norm, seen[2].loss) == (None, None, -0.1)
    json.dumps([report.model_dump(mode="json") for report in seen], allow_nan=False)
    with pytest.raises(
        TrainingError, match=rf"3 updates were not finite \(loss nan, gradient norm {number:g}; loss -0.1"
    ):
        step(to, 4, grad_norm=number)


def test_a_step_that_failed_midway_or_is_flushed_again_is_no_update() -> None:
    to, seen = log(3)
    to.rollout(1, rollout())
    to.log({"timing/generate": 1.0}, 1)
    to.log(NAMES, 1)
    assert seen == []


@pytest.mark.spec("RL-08")
def test_a_phase_none_of_whose_updates_had_contrast_says_so_at_its_end() -> None:
    to, seen = log(2)
    step(to, 1, contrast=False, grad_norm=0.0)
    with pytest.raises(TrainingError, match=r"none of 2 updates took a step.* \(Train reward 0.00, 0.00\)"):
        step(to, 2, contrast=False, grad_norm=0.0)
    assert [(report.zero_variance_groups, report.trained_tokens) for report in seen] == [(1, 0), (1, 0)]
    to, _ = log(2)
    step(to, 1, contrast=False, grad_norm=0.0)
    step(to, 2)
    to, _ = log(2)
    step(to, 1, grad_norm=math.nan)
    with pytest.raises(TrainingError, match=r"or loss or gradient were not finite \(1 of them\)"):
        step(to, 2, contrast=False, grad_norm=0.0)
