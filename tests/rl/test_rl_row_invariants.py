"""Each invariant of a step-wise batch by name: it holds for any episodes, and breaking it is refused.

A trainer of step-wise rows checks only some of these itself: what it misses, it trains wrongly on.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from rl_samples import RIGHT, WRONG, call, episode

from broker.budgets import Budgets
from broker.record import GradedEpisode
from rl.errors import TrainingError
from rl.grpo import row_advantages
from rl.rows import Row, RowBatch, TrajectoryId, build_rows, check_batch

TASKS = ("a", "b", "c")
ATTEMPTS = 3
PLACEHOLDER = {
    "prompt_ids": (0,),
    "completion_ids": (0,),
    "rollout_logprobs": (0.0,),
    "loss_mask": (0,),
    "rewards": (0.0,),
    "is_last": True,
}
Results = list[GradedEpisode | None]

ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=5)


@st.composite
def results(draw: st.DrawFn) -> Results:
    """Three tasks x three attempts of 0 to 3 calls; some were lost by our infrastructure."""
    found: Results = []
    for task in TASKS:
        for repetition in range(ATTEMPTS):
            if draw(st.integers(0, 7)) == 0:
                found.append(None)
                continue
            calls = []
            for index in range(draw(st.integers(0, 3))):
                completion = draw(ids)
                logprobs = [draw(st.floats(-30, 0)) for _ in completion]
                calls.append(call(index, draw(ids), completion, logprobs))
            found.append(episode(task, repetition, calls, draw(st.sampled_from([RIGHT, WRONG]))))
    trains = [
        all(item is not None for item in group) and any(item.record.model_calls for item in group if item)
        for group in groups_of(found)
    ]
    assume(any(trains))
    return found


def groups_of(found: Results) -> list[Results]:
    return [found[start : start + ATTEMPTS] for start in range(0, len(found), ATTEMPTS)]


def batch_of(found: Results) -> RowBatch:
    return build_rows(found, TASKS, ATTEMPTS)


def trajectories(batch: RowBatch) -> list[tuple[TrajectoryId, list[Row]]]:
    return [(key, list(rows)) for key, rows in groupby(batch.rows, key=lambda row: row.trajectory)]


any_batch = settings(max_examples=40, deadline=None)


@pytest.mark.spec("RL-05")
@any_batch
@given(results())
def test_the_columns_of_a_row_have_one_length_and_it_is_not_zero(found: Results) -> None:
    for row in batch_of(found).rows:
        lengths = {len(row.completion_ids), len(row.rollout_logprobs), len(row.loss_mask), len(row.rewards)}
        assert len(lengths) == 1
        assert lengths != {0}
        assert row.prompt_ids


@pytest.mark.spec("RL-01", "RL-07")
@any_batch
@given(results())
def test_every_attempt_is_there_once_contiguous_and_in_order_whatever_became_of_it(found: Results) -> None:
    wanted = [TrajectoryId(task, number) for task in TASKS for number in range(ATTEMPTS)]
    # `groupby` would give a trajectory that is torn apart twice.
    assert [trajectory for trajectory, _ in trajectories(batch_of(found))] == wanted


@pytest.mark.spec("RL-05")
@any_batch
@given(results())
def test_is_last_is_a_bool_and_true_exactly_at_the_end_of_a_trajectory(found: Results) -> None:
    for _, rows in trajectories(batch_of(found)):
        flags = [row.is_last for row in rows]
        assert all(type(flag) is bool for flag in flags)
        assert flags == [False] * (len(rows) - 1) + [True]


@pytest.mark.spec("RL-07")
@any_batch
@given(results())
def test_an_attempt_without_a_call_is_the_agreed_placeholder_and_no_other_row_is_one(found: Results) -> None:
    for item, (trajectory, rows) in zip(found, trajectories(batch_of(found)), strict=True):
        if item is None or not item.record.model_calls:
            assert rows == [Row(**PLACEHOLDER, trajectory=trajectory)]
        else:
            assert len(rows) == len(item.record.model_calls)


@any_batch
@given(results())
def test_a_group_with_a_lost_attempt_is_masked_whole_and_no_other_is_touched(found: Results) -> None:
    batch = batch_of(found)
    lost = {task for task, group in zip(TASKS, groups_of(found), strict=True) if None in group}
    assert set(batch.lost_prompts) == lost
    by_trajectory = dict(trajectories(batch))
    for task, group in zip(TASKS, groups_of(found), strict=True):
        for number, item in enumerate(group):
            rows = by_trajectory[TrajectoryId(task, number)]
            speaks = task not in lost and item is not None and bool(item.record.model_calls)
            assert {value for row in rows for value in row.loss_mask} == {int(speaks)}


@pytest.mark.spec("RL-06")
@any_batch
@given(results())
def test_the_trainable_tokens_are_the_engines_completion_tokens_and_nothing_else(found: Results) -> None:
    generated = sum(
        len(model_call.completion.token_ids)
        for group in groups_of(found)
        if None not in group
        for item in group
        if item is not None
        for model_call in item.record.model_calls
    )
    assert batch_of(found).trainable_tokens == generated


@pytest.mark.spec("RL-04", "RL-05")
@any_batch
@given(results())
def test_the_reward_stands_once_on_the_last_token_of_the_last_call(found: Results) -> None:
    for item, (_, rows) in zip(found, trajectories(batch_of(found)), strict=True):
        flat = [value for row in rows for value in row.rewards]
        speaks = item is not None and bool(item.record.model_calls)
        assert flat[:-1] == [0.0] * (len(flat) - 1)
        assert flat[-1] == float(speaks and item is not None and item.verdict.correct)


@pytest.mark.spec("RL-07", "RL-08", "RL-09")
@any_batch
@given(results())
def test_placeholders_count_in_their_groups_mean_and_deviation(found: Results) -> None:
    batch = batch_of(found)
    advantages = dict(zip((row.trajectory for row in batch.rows), row_advantages(batch.rows), strict=True))
    for task, group in zip(TASKS, groups_of(found), strict=True):
        if None in group:
            continue
        rewards = [
            float(bool(item.record.model_calls) and item.verdict.correct)
            for item in group
            if item is not None
        ]
        mean, deviation = np.mean(rewards), np.std(rewards, ddof=1)
        for number, reward in enumerate(rewards):
            assert math.isclose(
                advantages[TrajectoryId(task, number)], (reward - mean) / (deviation + 1e-6), abs_tol=1e-9
            )


@pytest.mark.spec("RL-09")
@any_batch
@given(results())
def test_all_calls_of_an_episode_have_one_advantage(found: Results) -> None:
    batch = batch_of(found)
    values: dict[TrajectoryId, set[float]] = {}
    for row, advantage in zip(batch.rows, row_advantages(batch.rows), strict=True):
        values.setdefault(row.trajectory, set()).add(advantage)
    assert all(len(found) == 1 for found in values.values())


# -- and each is really checked ------------------------------------------------------------------------------


def a_batch() -> RowBatch:
    """Task a: two calls, one call. Task b: one call, none. Task c: one lost attempt."""
    one = call(0, [1], [2, 3], [-1, -1])
    two = call(1, [1, 2], [4], [-1])
    return build_rows(
        [
            episode("a", 0, [one, two], RIGHT),
            episode("a", 1, [one], WRONG),
            episode("b", 0, [one], RIGHT),
            episode("b", 1, []),
            episode("c", 0, [one], RIGHT),
            None,
        ],
        TASKS,
        2,
    )


def without(position: int) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: rows[:position] + rows[position + 1 :]


def changed(position: int, **fields: Any) -> Callable[[list[Row]], list[Row]]:
    def change(rows: list[Row]) -> list[Row]:
        rows[position] = dataclasses.replace(rows[position], **fields)
        return rows

    return change


def swapped(one: int, other: int) -> Callable[[list[Row]], list[Row]]:
    def change(rows: list[Row]) -> list[Row]:
        rows[one], rows[other] = rows[other], rows[one]
        return rows

    return change


def breaches() -> Iterator[tuple[str, Callable[[list[Row]], list[Row]], str]]:
    """Name, change, and the words of its refusal."""
    yield "a dropped failure", without(4), "equal attempts"
    yield "a dropped attempt", without(2), "equal attempts"
    yield "a dropped last call", without(1), "not contiguous or has no last row"
    yield "two attempts in the wrong order", swapped(3, 4), "equal attempts"
    yield "a torn trajectory", swapped(1, 2), "not contiguous"
    yield "the boundary a call too early", changed(0, is_last=True), "equal attempts"
    yield "a boundary that is no bool", changed(1, is_last=np.True_), "no bool"
    yield "a boundary that is a number", changed(2, is_last=1), "no bool"
    yield "an empty response", changed(2, **dict.fromkeys(COLUMNS, ())), "empty"
    yield "an empty prompt", changed(2, prompt_ids=()), "empty"
    yield "log-probabilities too few", changed(0, rollout_logprobs=(-1.0,)), "unequal"
    yield "rewards too many", changed(0, rewards=(0.0, 0.0, 0.0)), "unequal"
    yield "a negative id", changed(0, completion_ids=(2, -3)), "negative"
    yield "a log-probability of NaN", changed(0, rollout_logprobs=(-1.0, math.nan)), "not finite"
    yield "a log-probability above 0", changed(0, rollout_logprobs=(-1.0, 0.1)), "above 0"
    yield "a row trained in part", changed(0, loss_mask=(1, 0)), "in part"
    yield "a weight for a mask", changed(0, loss_mask=(2, 2)), "in part"
    yield "a reward before the last call", changed(0, rewards=(0.0, 1.0)), "before the trajectory's last"
    yield "a reward before the last token", changed(3, rewards=(1.0, 1.0)), "before the trajectory's last"
    yield "a reward above 1", changed(3, rewards=(0.0, 2.0)), "outside 0 .. 1"
    yield "a reward of NaN", changed(3, rewards=(0.0, math.nan)), "outside 0 .. 1"
    yield "a trained row in a lost group", changed(5, loss_mask=(1, 1)), "is not masked"
    yield "a masked answer in a good group", changed(2, loss_mask=(0, 0)), "no placeholder"


COLUMNS = ("completion_ids", "rollout_logprobs", "loss_mask", "rewards")


@pytest.mark.spec("RL-05", "RL-06", "RL-07")
@pytest.mark.parametrize(("change", "words"), [pytest.param(*rest, id=name) for name, *rest in breaches()])
def test_a_batch_that_breaks_an_invariant_is_refused(
    change: Callable[[list[Row]], list[Row]], words: str
) -> None:
    batch = a_batch()
    check_batch(batch, TASKS)
    with pytest.raises(TrainingError, match=words):
        check_batch(dataclasses.replace(batch, rows=tuple(change(list(batch.rows)))), TASKS)


def test_a_batch_that_miscounts_its_silent_prompts_is_refused() -> None:
    with pytest.raises(TrainingError, match="as silent"):
        check_batch(dataclasses.replace(a_batch(), silent_prompts=("b",)), TASKS)


@pytest.mark.spec("RL-05", "HOST-03")
@example(over=0)
@given(over=st.integers(0, 3))
def test_a_row_longer_than_the_budgets_allow_is_refused(over: int) -> None:
    spoken = [call(0, [1] * 60, [2] * (4 + over), [-1.0] * (4 + over))]
    found = [episode("a", 0, spoken, RIGHT)]
    roomy = Budgets(context_tokens=128, completion_tokens=4 + over)
    assert build_rows(found, ["a"], 1, budgets=roomy).trainable_tokens == 4 + over
    if over:
        with pytest.raises(TrainingError, match="the engine ignored its limits"):
            build_rows(found, ["a"], 1, budgets=Budgets(context_tokens=128, completion_tokens=4))
        with pytest.raises(TrainingError, match=f"{64 + over}, more than"):
            build_rows(found, ["a"], 1, budgets=Budgets(context_tokens=64, completion_tokens=8))
