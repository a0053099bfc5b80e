"""The soak's own parts: the trend, the criteria, the permuted release, and one whole phase in small."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_lab.improver.assemble import Trait, traits_of
from rl.contract import RlContract
from tests.fixtures.episodes import release, right_answer
from tests.fixtures.sandboxes import CACHE, real_runtime
from tests.rl import rl_jobs
from tests.soak import learning
from tests.soak.curves import PhaseResult, compare, judge, rising_p, slope
from tests.soak.phase import RESULT, Phase, recipe
from tests.soak.shuffled import kept, shuffle_release
from verifier.grade import Grader
from verifier.release import Release, find


def result(
    seed: int, rewards: list[float], before: int, after: int, *, shuffled: bool = False, read: int = 60
) -> PhaseResult:
    """60 Test tasks of which the first so many are right, and the first `read` readable on both sides."""
    return PhaseResult(
        seed=seed,
        shuffled=shuffled,
        rewards=tuple(rewards),
        completion_rates=tuple(1.0 for _ in rewards),
        zero_variance_groups=tuple(0 for _ in rewards),
        before={f"t{number}": number < before for number in range(60)},
        after={f"t{number}": number < after for number in range(60)},
        valid_before=60,
        valid_after=60,
        read=tuple(f"t{number}" for number in range(read)),
        timed_out=0,
        identities={},
        device="cpu",
        seconds=1.0,
        load=0.0,
    )


WRONG = """
def run(task, api):
    api.generate([{"role": "user", "content": task["prompt"]}])
    api.submit("<answer>?</answer>")
"""
RISING, FLAT = [0.3, 0.35, 0.4, 0.5, 0.5, 0.6, 0.65, 0.7], [0.06, 0.0, 0.1, 0.06, 0.03, 0.09, 0.0, 0.06]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(-0.5, 0.5))
def test_a_slope_is_the_change_per_update(rewards: list[float], step: float) -> None:
    assert slope([step * place for place in range(len(rewards))]) == pytest.approx(step)
    assert slope(rewards) == pytest.approx(-slope(rewards[::-1]))


def test_a_rise_is_told_from_a_fall_and_from_nothing() -> None:
    assert rising_p({1: RISING}) < 0.001
    assert rising_p({1: RISING[::-1]}) > 0.99
    assert rising_p({1: [0.4] * 8, 2: [0.1] * 8}) == 1.0
    assert rising_p({1: RISING, 2: FLAT}) < 0.01, "seeds are added up"


def test_noise_seems_to_rise_as_often_as_it_may() -> None:
    generator = random.Random(3)
    seen = [
        rising_p({seed: [generator.random() for _ in range(8)] for seed in range(3)}, draws=200) < 0.05
        for _ in range(400)
    ]
    # 20 are expected; four deviations to either side.
    assert 3 <= sum(seen) <= 38


def test_learning_is_every_seed_on_test_and_a_rise_of_all() -> None:
    good = [result(seed, RISING, 28, 40) for seed in (1, 2, 3)]
    assert judge(good).met
    assert not judge([*good[:2], result(3, RISING, 28, 31)]).met, "p = 0.25 in one seed"
    assert not judge([result(seed, FLAT, 28, 40) for seed in (1, 2, 3)]).met
    assert not judge([result(seed, RISING, 40, 28) for seed in (1, 2, 3)]).met


def test_a_control_fails_by_a_better_test_or_by_a_rising_reward() -> None:
    flat = [result(seed, FLAT, 28, 29, shuffled=True) for seed in (1, 2, 3)]
    assert judge(flat).met
    assert judge([result(seed, FLAT, 28, 15, shuffled=True) for seed in (1, 2)]).met, "worse is not learned"
    assert not judge([*flat[:2], result(3, FLAT, 28, 40, shuffled=True)]).met
    form = judge([result(seed, FLAT, 28, 40, shuffled=True, read=28) for seed in (1, 2, 3)])
    assert form.met, "answers that could not be read before are no knowledge"
    assert form.lines()[3] == (
        "readable before and after, all seeds: 84 -> 84 of 84 (0 fixed, 0 broken, p = 1)"
    )
    together = [result(seed, FLAT, 28, 30, shuffled=True) for seed in (1, 2, 3)]
    assert not judge(together).met, "two fixed and none broken in each seed are six in all"
    untold = [phase.model_copy(update={"read": None}) for phase in flat]
    assert not judge(untold).met, "where the readable ones are not known nothing is shown"
    assert not judge([result(seed, RISING, 28, 28, shuffled=True) for seed in (1, 2, 3)]).met
    with pytest.raises(ValueError, match="one kind"):
        judge([flat[0], result(4, FLAT, 28, 28)])


def test_the_true_references_teach_more_than_permuted_ones() -> None:
    controls = [result(seed, FLAT, 28, after, shuffled=True) for seed, after in ((1, 31), (2, 37), (3, 19))]
    apart = compare(
        [result(seed, RISING, 28, after) for seed, after in ((1, 39), (2, 44), (3, 40))], controls
    )
    assert apart.met
    assert apart.p_value == 1 / 20
    assert apart.line() == (
        "the true references teach more: true +11, +16, +12; permuted +3, +9, -9; p = 0.05: met"
    )
    mixed = compare(
        [result(seed, RISING, 28, after) for seed, after in ((1, 39), (2, 44), (3, 35))], controls
    )
    assert not mixed.met
    assert mixed.p_value == 2 / 20
    assert compare(controls, controls).p_value >= 0.5
    longer = controls[0].model_copy(update={"identities": {"contract": "sha256:other"}})
    with pytest.raises(ValueError, match="phases of another contract cannot be compared"):
        compare(controls, [longer])
    late = [controls[0].model_copy(update={"timed_out": 1}), *controls[1:]]
    assert not compare([result(seed, RISING, 28, 44) for seed in (1, 2, 3)], late).met


def test_a_test_that_ran_out_of_time_shows_nothing() -> None:
    good = [result(seed, RISING, 28, 40) for seed in (1, 2, 3)]
    late = judge([*good[:2], good[2].model_copy(update={"timed_out": 2})])
    assert not late.met
    assert "2 Test episodes ran out of time" in late.lines()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60))
def test_a_verdict_says_what_it_was_decided_on(before: int, after: int) -> None:
    lines = judge([result(1, RISING, before, after)]).lines()
    assert f"Test {before} -> {after} of 60" in lines[0]
    assert lines[-1].endswith("met")


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return shuffle_release(
        find("open-genomics"), tmp_path_factory.mktemp("soak") / "open-genomics-shuffled", seed=1
    )


def _references(root: Path) -> dict[str, dict[str, Any]]:
    rows = map(json.loads, (root / "private/references.jsonl").read_bytes().splitlines())
    return {row["task"]: row for row in rows}


def test_a_shuffled_release_is_the_same_but_for_who_has_which_reference(variant: Release) -> None:
    original = find("open-genomics")
    assert variant.digest != original.digest
    assert variant.name == "open-genomics-shuffled-1"
    assert variant.tasks == original.tasks
    assert variant.inventory() == original.inventory()
    one, other = _references(original.root), _references(variant.root)
    for split in ("train", "val", "test"):
        for form in {str(task.answer_format) for task in original.tasks}:
            ids = [t.id for t in original.split(split) if str(t.answer_format) == form]
            assert Counter(one[i]["answer"] for i in ids) == Counter(other[i]["answer"] for i in ids)
    assert all(one[task].get("relative") == other[task].get("relative") for task in one)


def test_its_verdicts_carry_no_information(variant: Release) -> None:
    original = find("open-genomics")
    truth = _references(original.root)
    with Grader(variant) as grader:
        right = {
            str(form): [
                grader.grade(task.id, f"<answer>{truth[task.id]['answer']}</answer>").correct
                for task in original.tasks
                if task.answer_format is form
            ]
            for form in {task.answer_format for task in original.tasks}
        }
    assert sum(right["symbol"]) + sum(right["number"]) < 10, "of 276 right answers"
    # Letters are right by chance: a quarter of 84, within four deviations.
    assert 6 <= sum(right["letter"]) <= 36
    assert kept(original, variant) < 0.12


def test_the_same_seed_gives_the_same_release_and_another_seed_another(
    variant: Release, tmp_path: Path
) -> None:
    original = find("open-genomics")
    assert shuffle_release(original, tmp_path / "again", seed=1).digest == variant.digest
    assert shuffle_release(original, tmp_path / "other", seed=2).digest != variant.digest


def test_the_recipe_is_the_laptop_s_with_the_asked_number_of_updates() -> None:
    assert recipe()["contract"] == RlContract(updates=8, prompts_per_batch=4, attempts=8, learning_rate=1e-5)
    assert recipe(30)["contract"].updates == 30
    assert traits_of(recipe()["harness_code"]) == {Trait.DIRECT, Trait.EXAMPLES, Trait.LOOK_UP}


def small_phase(tmp_path: Path, trained_on: Release, code: str) -> Phase:
    phase = Phase(
        seed=1,
        folder=tmp_path / "phase",
        model=rl_jobs.base_model(),
        cache=CACHE,
        release=str(release().root),
        training_release=str(trained_on.root),
        harness_code=code,
        budgets=rl_jobs.setup(tmp_path)["budgets"],
        contract=RlContract(updates=2, prompts_per_batch=4, attempts=4, learning_rate=1e-3),
        concurrency=8,
        device="cpu",
        threads=1,
        sandbox="bubblewrap",
    )
    phase.folder.mkdir()
    (phase.folder / "phase.json").write_text(phase.model_dump_json())
    return phase


@pytest.mark.slow
def test_a_phase_trains_on_the_permuted_release_and_measures_on_the_true_one(tmp_path: Path) -> None:
    real_runtime()
    shuffled = shuffle_release(release(), tmp_path / "shuffled", seed=1)
    phase = small_phase(tmp_path, shuffled, rl_jobs.guess())
    done = learning.run([phase], parallel=1)
    assert len(done[0].rewards) == 2
    assert done[0].before.keys() == done[0].after.keys() == {t.id for t in release().split("test")}
    assert done[0].identities["trained on"] == shuffled.digest
    assert done[0].identities["measured on"] == release().digest
    stamp = (phase.folder / RESULT).stat().st_mtime_ns
    assert learning.run([phase], parallel=1) == done, "a finished seed is not run again"
    assert (phase.folder / RESULT).stat().st_mtime_ns == stamp
    verdict, comparison = learning.conclude(tmp_path, done)
    assert comparison is None, "there is nothing to compare with yet"
    assert done[0].read is not None
    assert verdict.criterion == "permuted references teach nothing"
    assert json.loads((tmp_path / "control.json").read_text())["phases"][0]["seed"] == 1
    assert (tmp_path / "reward-curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_phase_without_any_contrast_leaves_the_base_model(tmp_path: Path) -> None:
    real_runtime()
    phase = small_phase(tmp_path, release(), WRONG)
    (done,) = learning.run([phase], parallel=1)
    assert done.rewards == (0.0, 0.0)
    assert done.after == done.before
    assert done.identities["export"] == done.identities["base"]
    assert not (phase.folder / "train/export").exists()


@pytest.mark.slow
def test_a_phase_that_fails_says_where_its_log_is(tmp_path: Path) -> None:
    phase = Phase(seed=4, folder=tmp_path / "phase", model=tmp_path / "absent", cache=CACHE, **recipe(1))
    phase.folder.mkdir()
    (phase.folder / "phase.json").write_text(phase.model_dump_json())
    with pytest.raises(RuntimeError, match="seed 4 ended with status 1"):
        learning.run([phase], parallel=1)


def test_right_answers_of_the_fixture_are_known_to_the_program() -> None:
    assert all(right_answer(task) in rl_jobs.guess() for task in release().split("train"))
