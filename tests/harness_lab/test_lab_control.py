"""Null controls: where nothing is better, selection adopts as often as chance and no other rule passes."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from broker.evaluation import Evaluation
from harness_lab import selection
from harness_lab.control import ControlConfig, Rule, run_control
from harness_lab.control_world import make_world

_SMALL: dict[str, Any] = {"kind": "identical", "val": 30, "noise": 0.1, "steps": 200}


def mutated(before: str, after: str) -> Rule:
    """The rule of `harness_lab/selection.py` with one place of its text changed."""
    text = inspect.getsource(selection)
    assert text.count(before) == 1, before
    names: dict[str, Any] = {"__name__": "mutated"}
    exec(compile(text.replace(before, after), "mutated.py", "exec"), names)
    return names["select"]


def reusing() -> Rule:
    """A rule that does not evaluate an adopted parent again: it takes the score that it was adopted with."""
    known: dict[str, Evaluation] = {}

    def rule(parent: Evaluation, candidates: list[selection.CandidateResult], **more: Any) -> Any:
        decision = selection.select(known.get(parent.harness, parent), candidates, **more)
        known.update({item.evaluation.harness: item.evaluation for item in candidates})
        return decision

    return rule


@pytest.mark.spec("SEL-05", "SEL-06", "SEL-07")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ["identical", "shuffled"])
def test_adoption_rate_and_gain_are_those_of_the_null(kind: Any, seed: int, tmp_path: Path) -> None:
    found = run_control(ControlConfig(kind=kind, seed=seed), tmp_path / "release")
    assert found.adoption_chance > 1e-4
    assert found.gain_distance < 3.9
    assert found.fits
    # What this control could not have missed: 200 steps tell a rate apart to a tenth.
    assert 0.5 < found.expected_adoptions / 200 < 0.75


@pytest.mark.spec("SEL-05")
def test_without_noise_programs_of_equal_behaviour_are_never_adopted(tmp_path: Path) -> None:
    found = run_control(ControlConfig(kind="identical", noise=0.0, val=12), tmp_path / "release")
    assert (found.adoptions, found.expected_adoptions, found.gain) == (0, 0.0, 0.0)
    assert found.fits


@pytest.mark.spec("SEL-06")
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_rule_that_adopts_a_tie_fails_the_control(noise: float, tmp_path: Path) -> None:
    rule = mutated(
        "eligible=not found.errors and found.correct > parent.correct",
        "eligible=not found.errors and found.correct >= parent.correct",
    )
    config = ControlConfig(**{**_SMALL, "noise": noise})
    assert run_control(config, tmp_path / "sound").fits
    assert not run_control(config, tmp_path / "broken", rule).fits


@pytest.mark.spec("SEL-07")
def test_a_rule_that_reuses_the_parent_s_score_fails_the_control(tmp_path: Path) -> None:
    broken = run_control(ControlConfig(**_SMALL), tmp_path / "release", reusing())
    assert broken.adoptions < broken.expected_adoptions / 2, "a lucky score is never beaten again"
    assert not broken.fits


def test_a_rule_that_takes_the_worst_of_the_better_ones_fails_by_its_gain(tmp_path: Path) -> None:
    rule = mutated("best = max(eligible", "best = min(eligible")
    config = ControlConfig(kind="identical")
    broken = run_control(config, tmp_path / "release", rule)
    assert broken.adoption_chance > 1e-4, "it adopts as often"
    assert not broken.fits


def test_shuffled_references_stay_a_permutation_within_their_format(tmp_path: Path) -> None:
    sound = make_world(tmp_path / "a", val=30, noise=0.0, seed=1, shuffled=False)
    shuffled = make_world(tmp_path / "b", val=30, noise=0.0, seed=1, shuffled=True)
    assert [task.id for task in sound.tasks] == [task.id for task in shuffled.tasks]
    assert all(verified[0] and not any(verified[1:]) for verified in sound.verifies.values())
    for task in shuffled.tasks:
        assert sum(shuffled.verifies[task.id]) == (1 if task.options else shuffled.verifies[task.id][0])
    right = sum(verified[0] for verified in shuffled.verifies.values())
    assert right < 15, "what was right is right by chance only"


def test_a_control_is_the_same_for_the_same_seed_and_another_for_another(tmp_path: Path) -> None:
    small = ControlConfig(kind="shuffled", steps=20, val=12)
    first = run_control(small, tmp_path / "a")
    assert run_control(small, tmp_path / "b") == first
    assert run_control(small.model_copy(update={"seed": 2}), tmp_path / "c") != first
