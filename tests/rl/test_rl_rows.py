import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_samples import RIGHT, WRONG, call, episode

from broker.record import GradedEpisode
from rl.errors import TrainingError
from rl.rows import RowBatch, TrajectoryId, build_rows, check_batch

ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=6)


@st.composite
def groups(draw: st.DrawFn) -> list[GradedEpisode]:
    """Three tasks x two attempts, each with 0 to 3 calls of arbitrary ids."""
    episodes: list[GradedEpisode] = []
    for task in ("a", "b", "c"):
        for repetition in range(2):
            calls = []
            for index in range(draw(st.integers(0, 3))):
                completion = draw(ids)
                logprobs = [draw(st.floats(-30, 0)) for _ in completion]
                calls.append(call(index, draw(ids), completion, logprobs))
            episodes.append(episode(task, repetition, calls, draw(st.sampled_from([RIGHT, WRONG]))))
    return episodes


@pytest.mark.spec("RL-05", "HOST-06")
@settings(max_examples=40, deadline=None)
@given(groups())
def test_every_call_is_one_row_with_the_very_ids_and_logprobs_of_the_engine(
    episodes: list[GradedEpisode],
) -> None:
    if not any(item.record.model_calls for item in episodes):
        return
    batch = build_rows(episodes, ["a", "b", "c"], 2)
    remaining = list(batch.rows)
    for item in episodes:
        trajectory = TrajectoryId(item.record.task_id, item.record.repetition)
        for index, model_call in enumerate(item.record.model_calls):
            row = remaining.pop(0)
            assert row.trajectory == trajectory
            assert row.prompt_ids is model_call.prompt_ids
            assert row.completion_ids is model_call.completion.token_ids
            assert row.rollout_logprobs is model_call.completion.logprobs
            assert row.loss_mask == (1,) * len(row.completion_ids)
            last = index == len(item.record.model_calls) - 1
            assert row.is_last is last
            assert sum(row.rewards) == (item.verdict.reward if last else 0.0)
            assert row.rewards[-1] == sum(row.rewards)
        if not item.record.model_calls:
            assert remaining.pop(0).loss_mask == (0,)
    assert not remaining


@pytest.mark.spec("RL-07")
def test_an_episode_without_a_model_call_stays_in_its_group_as_a_masked_placeholder_with_reward_0() -> None:
    lively = episode("a", 0, [call(0, [1], [2, 3], [-1, -1])], RIGHT)
    # Even a right answer earns nothing when no model gave it.
    batch = build_rows([lively, episode("a", 1, [], RIGHT)], ["a"], 2)
    placeholder = batch.rows[1]
    assert (placeholder.prompt_ids, placeholder.completion_ids) == ((0,), (0,))
    assert (placeholder.loss_mask, placeholder.rewards) == ((0,), (0.0,))
    assert placeholder.trajectory == TrajectoryId("a", 1)
    assert batch.zero_call_episodes == 1


@pytest.mark.spec("RL-07")
def test_a_task_with_only_silent_episodes_trains_nothing_and_is_counted() -> None:
    results = [
        *(episode("a", number, []) for number in range(2)),
        *(episode("b", number, [call(0, [1], [2], [-1])]) for number in range(2)),
    ]
    batch = build_rows(results, ["a", "b"], 2)
    assert batch.silent_prompts == ("a",)
    assert sum(row.trainable for row in batch.rows if row.trajectory.instance == "a") == 0


@pytest.mark.spec("RL-07")
def test_a_batch_without_a_trainable_token_is_an_error() -> None:
    with pytest.raises(TrainingError, match="RL-07"):
        build_rows([episode("a", 0, []), episode("a", 1, [])], ["a"], 2)


def test_an_attempt_lost_to_infrastructure_masks_its_whole_group_and_only_that() -> None:
    good = [episode(task, number, [call(0, [1], [2], [-1])], RIGHT) for task in "ab" for number in range(2)]
    batch = build_rows([good[0], None, good[2], good[3]], ["a", "b"], 2)
    assert batch.lost_prompts == ("a",)
    assert [row.trainable for row in batch.rows] == [0, 0, 1, 1]


def test_results_out_of_order_are_refused() -> None:
    results = [episode("a", number, [call(0, [1], [2], [-1])]) for number in (1, 0)]
    with pytest.raises(TrainingError, match="keep the order"):
        build_rows(results, ["a"], 2)


def test_missing_attempts_and_repeated_tasks_are_refused() -> None:
    one = episode("a", 0, [call(0, [1], [2], [-1])])
    with pytest.raises(TrainingError, match="1 results"):
        build_rows([one], ["a"], 2)
    with pytest.raises(TrainingError, match="twice"):
        build_rows([one, one], ["a", "a"], 1)


def test_a_logprob_that_is_not_finite_is_refused() -> None:
    with pytest.raises(TrainingError, match="not finite"):
        build_rows([episode("a", 0, [call(0, [1], [2], [math.nan])])], ["a"], 1)


@pytest.mark.spec("RL-05")
def test_rewards_before_the_last_token_and_broken_boundaries_are_refused() -> None:
    calls = [call(0, [1], [2, 3], [-1, -1]), call(1, [1], [4], [-1])]
    batch = build_rows([episode("a", 0, calls, RIGHT)], ["a"], 1)
    first, last = batch.rows

    def changed(*rows: object) -> RowBatch:
        return RowBatch(**{**batch.__dict__, "rows": rows})

    def with_fields(row: object, **fields: object) -> object:
        return type(row)(**{**row.__dict__, **fields})

    for rows, message in [
        ([with_fields(first, rewards=(1.0, 0.0)), last], "before the trajectory's last token"),
        ([with_fields(first, rewards=(0.0, 1.0)), last], "before the trajectory's last token"),
        ([first, with_fields(last, is_last=False, rewards=(0.0,))], "no last row"),
        ([first, with_fields(last, trajectory=TrajectoryId("a", 1))], "not contiguous"),
        ([with_fields(first, is_last=True), last], "equal attempts"),
        ([with_fields(first, loss_mask=(1,)), last], "unequal"),
    ]:
        with pytest.raises(TrainingError, match=message):
            check_batch(changed(*rows), ["a"])


@pytest.mark.spec("RL-02", "HOST-12")
@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"top_p": 0.9},
        {"top_k": 20},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
    ],
)
def test_a_call_that_was_sampled_otherwise_than_the_policy_is_refused(setting: dict[str, float]) -> None:
    good = call(0, [1], [2], [-1.0])
    other = good.model_copy(update={"sampling": good.sampling.model_copy(update=setting), "index": 1})
    assert build_rows([episode("a", 0, [good])], ["a"], 1).trainable_tokens == 1
    with pytest.raises(TrainingError, match=f"RL-02: a/0 was sampled with {next(iter(setting))}="):
        build_rows([episode("a", 0, [good, other])], ["a"], 1)
