"""What SkyRL logs after each step, together with our rollout, as the report of one update.

Stands in for SkyRL's tracker. Names of SkyRL's metrics are read here and nowhere else. Must not know Ray.
"""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.record import GradedEpisode
from rl.contract import RlContract
from rl.errors import TrainingError
from rl.grpo import row_advantages, zero_variance_groups
from rl.job_spec import UpdateReport
from rl.patience import not_finite, refuse_third, require_a_step
from rl.rollout import Rollout
from rl.rows import reward_of
from rl.skyrl.settings import SkyrlSettings

Metrics = Mapping[str, Any]


class UpdateLog:
    """`Tracking` of SkyRL: hears of every step, keeps the reports."""

    def __init__(
        self, contract: RlContract, settings: SkyrlSettings, on_update: Callable[[UpdateReport], None]
    ) -> None:
        self._contract, self._settings, self._on_update = contract, settings, on_update
        self._rollouts: dict[int, Rollout] = {}
        self._not_finite: list[str] = []
        self.reports: list[UpdateReport] = []

    def rollout(self, update: int, rollout: Rollout) -> None:
        """The episodes that the step of this number trains on."""
        self._rollouts[update] = rollout

    def log(self, data: Metrics, step: int, commit: bool = False) -> None:
        """SkyRL's call after a step, or for a step that failed midway, which has no loss yet.

        Raises `TrainingError`, which ends SkyRL's training: at the third update that was not finite, or at
        the last one if none had contrast.
        """
        rollout = self._rollouts.pop(step, None)
        if rollout is None or "policy/policy_loss" not in data:
            return
        report = update_report(step, rollout, data, self._contract, self._settings)
        self.reports.append(report)
        self._on_update(report)
        if report.skipped:
            self._not_finite.append(
                not_finite(_number(data, "policy/policy_loss"), _number(data, "policy/grad_norm"))
            )
            refuse_third(self._not_finite)
        if len(self.reports) == self._contract.updates:
            require_a_step(self.reports)

    def log_exception(self, e: BaseException, step: int = 0) -> None:
        """SkyRL raises it again; its traceback belongs into the log."""
        traceback.print_exception(e)

    def finish(self) -> None:
        """Nothing is open."""


def update_report(
    step: int, rollout: Rollout, data: Metrics, contract: RlContract, settings: SkyrlSettings
) -> UpdateReport:
    """Losses, norms and seconds are SkyRL's; everything about episodes and rows is ours."""
    batch = rollout.batch
    rows = batch.rows
    advantages = row_advantages(rows, contract.advantage_delta)
    padded_rows = math.ceil(len(rows) / settings.policy_gpus) * settings.policy_gpus
    gradient_norm = _finite(data, "policy/grad_norm")
    return UpdateReport(
        update=step,
        # SkyRL's optimiser takes no step then (`FSDPStrategy.optimizer_step`). A batch without contrast it
        # does step on, with a gradient of 0.
        skipped="not_finite" if gradient_norm is None else None,
        reward=_mean([reward_of(episode, contract.reward) for episode in rollout.episodes]),
        completion_rate=_mean([float(episode.verdict.format_valid) for episode in rollout.episodes]),
        episodes=len(rollout.episodes),
        model_calls=_calls(rollout.episodes),
        zero_call_episodes=batch.zero_call_episodes,
        zero_variance_groups=zero_variance_groups(rows),
        lost_prompts=len(batch.lost_prompts),
        silent_prompts=len(batch.silent_prompts),
        loss=_finite(data, "policy/policy_loss"),
        gradient_norm=gradient_norm,
        # SkyRL's mean over micro-batches of each one's share, not weighted by tokens.
        clip_share=_number(data, "policy/loss_metrics/clip_ratio"),
        entropy=_finite(data, "policy/policy_entropy"),
        logprob_gap_mean=_finite(data, "policy/rollout_train_logprobs_abs_diff_mean"),
        logprob_gap_max=_finite(data, "policy/rollout_train_logprobs_abs_diff_max"),
        valid_tokens=batch.trainable_tokens,
        trained_tokens=sum(
            row.trainable for row, advantage in zip(rows, advantages, strict=True) if advantage
        ),
        computed_tokens=int(
            _number(data, "generate/batch_num_seq") * _number(data, "generate/batch_padded_seq_len")
        ),
        plain_tokens=sum(len(row.prompt_ids) + len(row.completion_ids) - 1 for row in rows),
        micro_batches=math.ceil(
            padded_rows / settings.policy_gpus / settings.micro_batch_of(contract.episodes_per_batch)
        ),
        generated_tokens=rollout.generated_tokens,
        tokens_per_second=rollout.generated_tokens / max(rollout.seconds, 1e-9),
        seconds_generate=_number(data, "timing/generate"),
        seconds_score=_number(data, "timing/fwd_logprobs_values_reward"),
        seconds_update=_number(data, "timing/train_critic_and_policy"),
        seconds_sync=_number(data, "timing/sync_weights"),
    )


def _number(data: Metrics, name: str) -> float:
    """A metric of SkyRL. Raises `TrainingError` at the first update if its name has changed."""
    if name not in data:
        raise TrainingError(f"this SkyRL reports no {name}: use a version that deploy/skyrl.md names")
    return float(data[name])


def _finite(data: Metrics, name: str) -> float | None:
    value = _number(data, name)
    return value if math.isfinite(value) else None


def _calls(episodes: Sequence[GradedEpisode]) -> int:
    return sum(len(episode.record.model_calls) for episode in episodes)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
