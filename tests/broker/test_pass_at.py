"""pass@k: the estimator against counting all choices, and a sample that is complete or none (SCHED-09)."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.evaluation import CoverageError
from broker.harness import Harness
from broker.pass_at import Sampled, TaskTally, budgets, pass_at, plan, sample, tally
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, make_broker, release
from tests.fixtures.fake_sandbox import FakeFactory

HARNESS = Harness(code=ASK_AND_SUBMIT)
counts = st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(1, n), st.integers(0, n), st.just(n)))


@pytest.mark.spec("SCHED-09", "REP-01")
@given(counts)
def test_the_estimator_is_the_share_of_all_choices_that_hold_a_right_attempt(
    asked: tuple[int, int, int],
) -> None:
    k, correct, attempts = asked
    choices = list(combinations([True] * correct + [False] * (attempts - correct), k))
    assert pass_at(k, correct, attempts) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


@pytest.mark.spec("SCHED-09")
@given(counts)
def test_it_grows_with_k_and_with_right_attempts_from_the_plain_share(asked: tuple[int, int, int]) -> None:
    k, correct, attempts = asked
    assert pass_at(1, correct, attempts) == pytest.approx(correct / attempts)
    assert pass_at(attempts, correct, attempts) == float(correct > 0)
    if k < attempts:
        assert pass_at(k, correct, attempts) <= pass_at(k + 1, correct, attempts)
    if correct < attempts:
        assert pass_at(k, correct, attempts) <= pass_at(k, correct + 1, attempts)


@pytest.mark.spec("SCHED-09")
@given(st.floats(0.05, 0.95), st.integers(1, 6), st.integers(6, 9))
def test_it_is_unbiased(chance: float, k: int, attempts: int) -> None:
    from math import comb

    expected = sum(
        comb(attempts, right)
        * chance**right
        * (1 - chance) ** (attempts - right)
        * pass_at(k, right, attempts)
        for right in range(attempts + 1)
    )
    assert expected == pytest.approx(1 - (1 - chance) ** k, abs=1e-9)


@pytest.mark.parametrize(("k", "correct", "attempts"), [(0, 0, 4), (5, 0, 4), (1, 5, 4), (1, -1, 4)])
def test_impossible_counts_are_refused(k: int, correct: int, attempts: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        pass_at(k, correct, attempts)


@given(st.integers(1, 100))
def test_a_table_has_one_attempt_and_all_of_them(attempts: int) -> None:
    found = budgets(attempts)
    assert (found[0], found[-1]) == (1, attempts)
    assert list(found) == sorted(set(found))


def _tallies(*correct: int, attempts: int = 4) -> Sampled:
    rows = [
        TaskTally(task_id=f"t{index}", family="f", material_group="g", correct=right, valid=attempts)
        for index, right in enumerate(correct)
    ]
    return Sampled(harness="h", split="test", seed=1, attempts=attempts, tallies=tuple(rows))


@pytest.mark.spec("SCHED-09", "REP-01")
def test_a_table_is_the_mean_over_tasks_and_the_row_counts_attempts() -> None:
    found = _tallies(0, 1, 4)
    assert found.table() == pytest.approx({1: (0 + 0.25 + 1) / 3, 2: (0 + 0.5 + 1) / 3, 4: 2 / 3})
    assert (found.correct, found.valid, found.total) == (5, 12, 12)
    with pytest.raises(ValueError, match="more right or valid"):
        _tallies(5)


@pytest.mark.spec("SCHED-09")
def test_two_samples_ask_the_same_tasks_with_the_same_seeds_and_each_attempt_another() -> None:
    tasks = release().split("val")
    first, second = plan(tasks, HARNESS, 4, 1), plan(tasks, Harness(code="def run(t, a): ..."), 4, 1)
    assert [(one.task.id, one.seed) for one in first] == [(one.task.id, one.seed) for one in second]
    assert len({one.seed for one in first}) == len(first) == 4 * len(tasks)
    assert {(one.temperature, one.mode) for one in first} == {(1.0, "evaluation")}


@pytest.mark.spec("SCHED-09", "SEL-04")
async def test_a_sample_counts_every_attempt_and_an_incomplete_one_gives_no_number() -> None:
    broker = make_broker(ScriptedModel("<answer>A</answer>"), FakeFactory())
    tasks = release().split("val")
    found, episodes = await sample(broker, HARNESS, "val", attempts=3, seed=1)
    assert found.total == len(episodes) == 3 * len(tasks)
    assert found.correct == sum(episode.verdict.correct for episode in episodes)
    with pytest.raises(CoverageError, match="gives no pass@k; not complete: "):
        tally(HARNESS, "val", tasks, episodes[:-1], attempts=3, seed=1)
    with pytest.raises(CoverageError):
        tally(HARNESS, "val", tasks, [*episodes[:-1], episodes[0]], attempts=3, seed=1)
