"""Episodes become training rows: one row per model call, ids exactly as the engine gave them (RL-05).

An episode of three calls is three rows with one `TrajectoryId`; only the last call's last token carries
the reward. Nothing is dropped and nothing is tokenised again: an attempt without a model call keeps its
place as a masked placeholder, so every group has the same number of attempts in every batch (RL-07).

Must not know how advantages or losses are computed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from broker.budgets import Budgets
from broker.model import Sampling
from broker.record import GradedEpisode
from rl.contract import RewardKind
from rl.errors import TokenIdsNeeded, TrainingError

_POLICY_SAMPLING: Final[Mapping[str, float]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
_ROUNDING: Final = 1e-3
"""A log-probability may be above 0 by so much: an engine subtracts two rounded numbers."""


class TrajectoryId(NamedTuple):
    """Identity of one attempt inside a batch."""

    instance: str
    """The task's id: the group that advantages are computed in."""
    repetition: int
    """0 .. attempts - 1."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model call. The four completion sequences have equal lengths, at least 1."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    """Natural log, as sampled; the policy that the clipped ratio is taken against."""
    loss_mask: tuple[int, ...]
    """1 = trained. Prompt, tool, feedback and harness tokens are never completion tokens (RL-06)."""
    rewards: tuple[float, ...]
    """Zero everywhere but on the last token of a trajectory's last row."""
    trajectory: TrajectoryId
    is_last: bool

    @property
    def trainable(self) -> int:
        return sum(self.loss_mask)


@dataclass(frozen=True, kw_only=True)
class RowBatch:
    """All rows of one update, ordered by task, attempt, call."""

    rows: tuple[Row, ...]
    attempts: int
    """Attempts of each task, equal for all."""
    zero_call_episodes: int
    """Attempts that stand as placeholders with reward 0."""
    silent_prompts: tuple[str, ...]
    """Tasks whose attempts all made no model call: they train nothing."""
    lost_prompts: tuple[str, ...]
    """Tasks with an attempt lost to our own infrastructure: the whole group is masked (decision 5)."""

    @property
    def trainable_tokens(self) -> int:
        return sum(row.trainable for row in self.rows)


def build_rows(
    results: Sequence[GradedEpisode | None],
    instances: Sequence[str],
    attempts: int,
    reward: RewardKind = "verdict",
    budgets: Budgets | None = None,
) -> RowBatch:
    """Rows of a batch, in the order of `results`: all attempts of the first task, then of the second.

    `reward` says whether a rubric's R counts or the verdict alone (RL-04). `None` stands for an attempt that
    our infrastructure lost. `budgets` are those of the episodes: no row is longer. Raises `TrainingError`
    when an episode is not the attempt that its place says, or when no token of the batch can be trained
    (RL-07), and `TokenIdsNeeded` for an episode with a chat endpoint (HOST-11).
    """
    if wordy := next((item for item in results if item is not None and not item.record.token_exact), None):
        raise TokenIdsNeeded(
            f"the episode on {wordy.record.task_id} came from a chat endpoint without token ids: RL needs a "
            "vLLM server or the embedded engine"
        )
    if len(set(instances)) != len(instances):
        raise TrainingError("a batch names a task twice: its two groups would be one")
    if len(results) != len(instances) * attempts:
        raise TrainingError(f"{len(results)} results for {len(instances)} tasks x {attempts} attempts")
    rows: list[Row] = []
    silent: list[str] = []
    lost: list[str] = []
    zero_call = 0
    for position, instance in enumerate(instances):
        group = results[position * attempts : (position + 1) * attempts]
        is_lost = any(episode is None for episode in group)
        quiet = sum(1 for episode in group if episode is not None and not episode.record.model_calls)
        zero_call += quiet
        if is_lost:
            lost.append(instance)
        elif quiet == attempts:
            silent.append(instance)
        for repetition, episode in enumerate(group):
            rows += _episode_rows(episode, TrajectoryId(instance, repetition), reward, masked=is_lost)
    batch = RowBatch(
        rows=tuple(rows),
        attempts=attempts,
        zero_call_episodes=zero_call,
        silent_prompts=tuple(silent),
        lost_prompts=tuple(lost),
    )
    check_batch(batch, instances, budgets)
    return batch


def reward_of(episode: GradedEpisode, kind: RewardKind) -> float:
    """What an episode is worth in training: 0 or 1, or R where the recipe names rubric rewards (RL-04)."""
    return episode.verdict.reward if kind == "rubric" else float(episode.verdict.correct)


def _episode_rows(
    episode: GradedEpisode | None, trajectory: TrajectoryId, kind: RewardKind, *, masked: bool
) -> list[Row]:
    if episode is None or not episode.record.model_calls:
        return [_placeholder(trajectory)]
    record = episode.record
    if (record.task_id, record.repetition) != trajectory:
        raise TrainingError(
            f"episode {record.task_id}/{record.repetition} stands at the place of "
            f"{trajectory.instance}/{trajectory.repetition}: keep the order of the attempts"
        )
    rows: list[Row] = []
    for index, call in enumerate(record.model_calls):
        _check_sampling(call.sampling, trajectory)
        ids = call.completion.token_ids
        is_last = index == len(record.model_calls) - 1
        reward = reward_of(episode, kind) if is_last else 0.0
        rows.append(
            Row(
                prompt_ids=call.prompt_ids,
                completion_ids=ids,
                rollout_logprobs=call.completion.logprobs,
                loss_mask=(0 if masked else 1,) * len(ids),
                rewards=(0.0,) * (len(ids) - 1) + (reward,),
                trajectory=trajectory,
                is_last=is_last,
            )
        )
    return rows


def _check_sampling(sampling: Sampling, trajectory: TrajectoryId) -> None:
    """Only samples of the policy itself are trained on: any other setting renormalises what was drawn."""
    for name, value in _POLICY_SAMPLING.items():
        if getattr(sampling, name) != value:
            raise TrainingError(
                f"RL-02: {trajectory.instance}/{trajectory.repetition} was sampled with {name}="
                f"{getattr(sampling, name)}, training needs {value}"
            )


def _placeholder(trajectory: TrajectoryId) -> Row:
    # The shape that a step-wise SkyRL batch accepts for an attempt without tokens.
    return Row(
        prompt_ids=(0,),
        completion_ids=(0,),
        rollout_logprobs=(0.0,),
        loss_mask=(0,),
        rewards=(0.0,),
        trajectory=trajectory,
        is_last=True,
    )


def check_batch(batch: RowBatch, instances: Sequence[str], budgets: Budgets | None = None) -> None:
    """Raise `TrainingError` unless every invariant of a batch holds.

    All tasks present, in order, with equal attempts; trajectories contiguous, ended by exactly one last
    row; sequences of equal length, within the budgets; rewards on last tokens only; a group trained whole or
    not at all, but for placeholders; at least one trainable token. A trainer that is handed less would not
    notice: a group would shrink, or an advantage land on other tokens.
    """
    expected = [TrajectoryId(name, number) for name in instances for number in range(batch.attempts)]
    found: list[TrajectoryId] = []
    open_trajectory: TrajectoryId | None = None
    for row in batch.rows:
        _check_row(row)
        _check_length(row, budgets)
        if open_trajectory is None:
            found.append(row.trajectory)
        elif row.trajectory != open_trajectory:
            raise TrainingError(f"trajectory {open_trajectory} is not contiguous or has no last row")
        open_trajectory = None if row.is_last else row.trajectory
    if open_trajectory is not None:
        raise TrainingError(f"trajectory {open_trajectory} has no last row")
    if found != expected:
        raise TrainingError("the batch does not hold every task with equal attempts, in order")
    _check_masks(batch)
    if batch.trainable_tokens == 0:
        silent, lost = len(batch.silent_prompts), len(batch.lost_prompts)
        raise TrainingError(
            f"RL-07: no trainable token in the batch of {len(instances)} tasks: {silent} have only episodes "
            f"without a model call, {lost} lost an attempt to infrastructure; check the harness program"
        )


def _check_row(row: Row) -> None:
    length = len(row.completion_ids)
    sizes = {len(row.rollout_logprobs), len(row.loss_mask), len(row.rewards)}
    if length == 0 or not row.prompt_ids or sizes != {length}:
        raise TrainingError(f"row of {row.trajectory} has empty or unequal sequences")
    if min(row.prompt_ids) < 0 or min(row.completion_ids) < 0:
        raise TrainingError(f"row of {row.trajectory} has a negative token id")
    if not all(math.isfinite(value) for value in row.rollout_logprobs):
        raise TrainingError(f"row of {row.trajectory} has a log-probability that is not finite")
    if max(row.rollout_logprobs) > _ROUNDING:
        raise TrainingError(f"row of {row.trajectory} has a log-probability above 0")
    if set(row.loss_mask) not in ({0}, {1}):
        raise TrainingError(
            f"row of {row.trajectory} is trained in part: its mask is neither all 0 nor all 1"
        )
    # A trainer finds the ends of episodes by identity with True.
    if row.is_last is not True and row.is_last is not False:
        raise TrainingError(f"row of {row.trajectory} has is_last={row.is_last!r}, which is no bool")
    if any(row.rewards[:-1]) or (row.rewards[-1] and not row.is_last):
        raise TrainingError(f"row of {row.trajectory} has a reward before the trajectory's last token")
    if not 0.0 <= row.rewards[-1] <= 1.0:
        raise TrainingError(f"row of {row.trajectory} has the reward {row.rewards[-1]}, outside 0 .. 1")


def _check_length(row: Row, budgets: Budgets | None) -> None:
    if budgets is None:
        return
    completion = len(row.completion_ids)
    whole = len(row.prompt_ids) + completion
    if completion > budgets.completion_tokens or whole > budgets.context_tokens:
        raise TrainingError(
            f"row of {row.trajectory} has {completion} generated tokens of {whole}, more than "
            f"budgets.completion_tokens={budgets.completion_tokens} or "
            f"budgets.context_tokens={budgets.context_tokens}: the engine ignored its limits"
        )


def _check_masks(batch: RowBatch) -> None:
    """A lost group is masked whole, in another one only placeholders are; the silent are those said so."""
    silent: list[str] = []
    for instance, rows in groupby(batch.rows, key=lambda row: row.trajectory.instance):
        group = list(rows)
        if instance in batch.lost_prompts:
            if any(row.trainable for row in group):
                raise TrainingError(f"the group of {instance} lost an attempt and is not masked")
            continue
        dead = [row for row in group if not row.trainable]
        if any(row != _placeholder(row.trajectory) for row in dead):
            raise TrainingError(f"the group of {instance} has a masked row that is no placeholder")
        if len(dead) == len(group):
            silent.append(instance)
    if tuple(silent) != batch.silent_prompts:
        raise TrainingError(f"the batch names {batch.silent_prompts} as silent, they are {tuple(silent)}")
