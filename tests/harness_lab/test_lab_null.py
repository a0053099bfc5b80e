"""The null is exact: it equals counting every case, and simulation; magnitudes are those seen in practice."""

import itertools
import random

import pytest

from harness_lab.null import (
    ability,
    best_of,
    estimate_noise,
    fresh_null,
    redrawn,
    score_distribution,
    step_null,
)


def test_a_score_distribution_equals_counting_every_case() -> None:
    chances = [0.1, 0.5, 0.9, 0.25]
    counted = [0.0] * 5
    for case in itertools.product((0, 1), repeat=4):
        weight = 1.0
        for right, chance in zip(case, chances, strict=True):
            weight *= chance if right else 1 - chance
        counted[sum(case)] += weight
    assert score_distribution(chances) == pytest.approx(counted)


def test_the_best_of_three_equals_counting_every_case() -> None:
    distribution = [0.2, 0.5, 0.3]
    counted = [0.0] * 3
    for case in itertools.product(range(3), repeat=3):
        counted[max(case)] += distribution[case[0]] * distribution[case[1]] * distribution[case[2]]
    assert best_of(distribution, 3) == pytest.approx(counted)


@pytest.mark.spec("SEL-09")
def test_the_step_null_equals_a_simulation_of_its_stated_model() -> None:
    total, correct, noise = 30, 12, 0.4
    draws, right = random.Random(5), ability(correct, total)
    adopted = gained = large = 0
    for _ in range(20_000):
        scores = [
            sum(
                (draws.random() < right) if draws.random() < noise else task < correct
                for task in range(total)
            )
            for _ in range(3)
        ]
        gain = max(scores) - correct
        adopted, gained, large = adopted + (gain > 0), gained + max(gain, 0), large + (gain >= 4)
    found = step_null(total, correct, 3, noise, best_gain=4)
    assert found.probability == pytest.approx(adopted / 20_000, abs=0.012)
    assert found.mean_gain == pytest.approx(gained / adopted / total, rel=0.03)
    assert found.as_large == pytest.approx(large / 20_000, abs=0.012)


@pytest.mark.parametrize(("total", "low", "high"), [(10, 0.43, 0.74), (30, 0.66, 0.81), (90, 0.76, 0.84)])
@pytest.mark.spec("SEL-09")
def test_three_candidates_that_are_no_better_are_adopted_in_most_steps(
    total: int, low: float, high: float
) -> None:
    found = [step_null(total, round(0.4 * total), 3, noise).probability for noise in (0.1, 0.3, 0.5)]
    assert found == sorted(found), "more noise, more spurious adoptions"
    assert low <= found[0]
    assert found[-1] <= high


def test_without_noise_or_without_candidates_nothing_is_adopted_by_chance() -> None:
    assert step_null(90, 30, 3, 0.0).probability == 0.0
    assert step_null(90, 30, 0, 0.5).probability == 0.0
    assert step_null(90, 90, 3, 1.0).probability == 0.0, "nothing is above all right"


def test_one_candidate_fresh_against_a_fresh_parent_wins_half_of_what_is_no_tie() -> None:
    own = redrawn(12, 30, 0.5)
    tie = sum(chance * chance for chance in own)
    assert fresh_null(own, [own]).probability == pytest.approx((1 - tie) / 2)


def test_of_four_equal_programs_the_parent_is_beaten_at_most_three_times_in_four() -> None:
    own = score_distribution([0.5] * 2000)
    assert 0.73 < fresh_null(own, [own] * 3).probability < 0.75


def test_noise_is_read_off_the_changed_answers() -> None:
    assert estimate_noise(45, 90, []) == 0.0
    assert estimate_noise(45, 90, [0, 0]) == 0.0
    assert estimate_noise(45, 90, [9, 9]) == pytest.approx(0.2, rel=1e-3), (
        "a tenth changed, half of the redrawn"
    )
    assert estimate_noise(0, 60, [52]) == 1.0


@pytest.mark.parametrize("values", [(0, 0, 3, 0.1), (10, 11, 3, 0.1), (10, 5, 3, 1.1), (10, 5, -1, 0.1)])
def test_a_null_of_what_cannot_be_is_an_error(values: tuple[int, int, int, float]) -> None:
    with pytest.raises(ValueError, match="no null"):
        step_null(*values)
