"""Selection is a pure rule over complete evaluations; statistics stand beside it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_samples import DIGEST, evaluation

from broker.evaluation import CoverageError
from broker.harness import Harness
from harness_lab.selection import CandidateResult, duplicate_of, select
from harness_lab.statistics import bootstrap_interval, mcnemar_p, paired_table


def candidate(index: int, right: set[int], **changes: object) -> CandidateResult:
    name = "sha256:" + str(index) * 64
    return CandidateResult(index=index, evaluation=evaluation(right, harness=name, **changes))  # type: ignore[arg-type]


@pytest.mark.spec("SEL-05", "SEL-09")
def test_case_t15_five_beat_four_and_the_noise_is_named() -> None:
    decision = select(evaluation({1, 2, 3, 4}), [candidate(0, {1, 2, 3, 5, 6})])
    assert decision.adopted
    table = decision.candidates[0].table
    assert (table.fixed, table.broken, table.both, table.neither) == (2, 1, 3, 4)
    assert table.p_value == 1.0
    assert "not distinguishable from noise" in decision.reason


@pytest.mark.spec("SEL-05", "SEL-06")
def test_a_tie_keeps_the_parent() -> None:
    decision = select(evaluation({1, 2}), [candidate(0, {3, 4}), candidate(1, {1})])
    assert not decision.adopted
    assert (decision.selected, decision.index) == (DIGEST, None)


@pytest.mark.spec("SEL-06")
def test_among_candidates_tied_above_the_parent_the_earliest_wins_whatever_order_they_come_in() -> None:
    decision = select(evaluation({1}), [candidate(2, {5, 6}), candidate(0, {2}), candidate(1, {3, 4})])
    assert decision.index == 1


@pytest.mark.spec("SEL-06")
def test_the_best_wins_over_an_earlier_better_one() -> None:
    assert select(evaluation({1}), [candidate(0, {2, 3}), candidate(1, {2, 3, 4})]).index == 1


@pytest.mark.spec("SEL-05")
def test_one_program_error_makes_the_best_score_ineligible() -> None:
    decision = select(evaluation({1}), [candidate(0, set(range(1, 11)), errors={4}), candidate(1, {2, 3})])
    assert decision.index == 1
    assert "failed in 1 of 10" in decision.candidates[0].reason


def test_errors_of_the_parent_do_not_protect_or_hurt_it() -> None:
    decision = select(evaluation({1, 2}, errors={3, 4}), [candidate(0, {1, 2})])
    assert not decision.adopted
    assert decision.parent_errors == 2


@pytest.mark.spec("SEL-04")
def test_a_comparison_over_other_or_fewer_tasks_is_an_error_and_never_a_score() -> None:
    with pytest.raises(CoverageError):
        select(evaluation({1}), [candidate(0, {1, 2}, total=9)])
    with pytest.raises(CoverageError):
        select(evaluation({1}), [candidate(0, {1, 2}, seed=2)])
    with pytest.raises(CoverageError):
        select(evaluation({1}, split="test"), [candidate(0, {1, 2}, split="test")])


@pytest.mark.spec("SEL-02")
def test_byte_identical_programs_are_duplicates_and_one_byte_more_is_not() -> None:
    parent, other = Harness(code="a"), Harness(code="b")
    assert duplicate_of(Harness(code="a"), parent, []) == "parent"
    assert duplicate_of(Harness(code="b"), parent, [other]) == "an earlier candidate"
    assert duplicate_of(Harness(code="b\n"), parent, [other]) is None


@pytest.mark.spec("SEL-07")
def test_the_decision_uses_the_parent_evaluation_that_it_is_given_and_no_earlier_one() -> None:
    rivals = [candidate(0, {1, 2, 3})]
    assert select(evaluation({1, 2}), rivals).adopted
    assert not select(evaluation({1, 2, 3}), rivals).adopted


@settings(max_examples=40, deadline=None)
@given(
    parent=st.sets(st.integers(1, 10)), rivals=st.lists(st.sets(st.integers(1, 10)), min_size=1, max_size=4)
)
def test_the_rule_holds_for_any_scores(parent: set[int], rivals: list[set[int]]) -> None:
    decision = select(evaluation(parent), [candidate(i, right) for i, right in enumerate(rivals)])
    best = max(len(right) for right in rivals)
    assert decision.adopted == (best > len(parent))
    if decision.adopted:
        assert decision.index == [len(right) for right in rivals].index(best)


@pytest.mark.parametrize(
    ("fixed", "broken", "p"), [(0, 0, 1.0), (6, 0, 0.03125), (6, 2, 0.289), (10, 2, 0.0386)]
)
def test_mcnemar_is_exact(fixed: int, broken: int, p: float) -> None:
    assert mcnemar_p(fixed, broken) == pytest.approx(p, abs=5e-4)
    assert mcnemar_p(broken, fixed) == mcnemar_p(fixed, broken)


def test_the_bootstrap_is_seeded_and_redraws_whole_groups() -> None:
    one_group = {"g": [1, -1, 1, -1]}
    assert bootstrap_interval(one_group) == (0.0, 0.0)
    groups = {"a": [1, 1], "b": [0, 0], "c": [-1, 0]}
    assert bootstrap_interval(groups, seed=3) == bootstrap_interval(dict(reversed(groups.items())), seed=3)
    low, high = bootstrap_interval(groups)
    assert low < 0 < high


def test_a_paired_table_needs_the_same_tasks() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        paired_table({"a": True}, {"b": True}, {"a": "g", "b": "g"})
