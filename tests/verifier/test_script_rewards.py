"""The reward files of a check script: read as Harbor does, and an error wherever they say nothing."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.rubric_checks import RubricError
from verifier.script import RewardError, ScriptStep, combine, reaches, read_rewards, read_script, satisfaction

GOOD = [
    (None, "1\n", {"reward": 1.0}),
    (None, " 0.25 ", {"reward": 0.25}),
    ('{"correctness": 1, "performance": 0.5}', None, {"correctness": 1.0, "performance": 0.5}),
    ('{"reward": 1}', "0", {"reward": 1.0}),
]
BAD = [
    (None, None, "neither"),
    (None, "", "empty"),
    (None, "yes", "not a number"),
    (None, "nan", "not finite"),
    (None, "inf", "not finite"),
    (None, "1e999", "not finite"),
    ("", "1", "reward.json is empty"),
    ("{", "1", "not JSON"),
    ("[1]", "1", "no object"),
    ("{}", "1", "no object"),
    ('{"a": "1"}', None, "finite number"),
    ('{"a": true}', None, "finite number"),
    ('{"a": NaN}', None, "finite number"),
    ('{"a": 1e999}', None, "finite number"),
    ('{"a": 1, "a": 0}', None, "key twice"),
    ("[" * 100_000, None, "not JSON"),
]


@pytest.mark.parametrize(("json_text", "plain_text", "expected"), GOOD)
def test_reward_json_is_read_before_reward_txt(json_text: Any, plain_text: Any, expected: dict[str, float]):
    assert read_rewards(json_text, plain_text) == expected


@pytest.mark.parametrize(("json_text", "plain_text", "words"), BAD)
def test_a_missing_or_unusable_reward_is_an_error_and_never_a_zero(
    json_text: Any, plain_text: Any, words: str
):
    with pytest.raises(RewardError, match=words):
        read_rewards(json_text, plain_text)


@given(st.one_of(st.none(), st.text(max_size=60)), st.one_of(st.none(), st.text(max_size=20)))
def test_whatever_a_script_writes_gives_finite_rewards_or_a_reward_error(one: str | None, other: str | None):
    try:
        found = read_rewards(one, other)
    except RewardError:
        return
    assert found
    assert all(math.isfinite(value) for value in found.values())


def test_without_a_key_the_rewards_count_equally_and_a_key_picks_its_own():
    rewards = {"correctness": 1.0, "performance": 0.0}
    assert satisfaction(rewards, "") == 0.5
    assert satisfaction(rewards, "correctness") == 1.0
    with pytest.raises(RewardError, match="no reward 'speed'"):
        satisfaction(rewards, "speed")


@pytest.mark.parametrize("value", [-0.5, 1.5])
def test_a_reward_that_is_no_share_is_an_error(value: float):
    with pytest.raises(RewardError, match="not between 0 and 1"):
        satisfaction({"reward": value}, "")


def test_several_steps_combine_as_harbor_does():
    first, last = {"a": 1.0, "b": 1.0}, {"a": 0.0}
    assert combine("mean", [first, last]) == {"a": 0.5, "b": 0.5}
    assert combine("final", [first, last]) == {"a": 0.0}


def test_a_step_below_its_minimum_or_without_the_gated_key_stops_the_steps():
    step = ScriptStep(tests=("tests",), seconds=1, minimum={"reward": 0.5})
    assert reaches(step, {"reward": 0.5})
    assert not reaches(step, {"reward": 0.4})
    assert not reaches(step, {"other": 1.0})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": []}, "at least one"),
        ({"strategy": "best"}, "mean or final"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"steps": [{"tests": ["tests"], "seconds": 0}]}, "seconds"),
        ({"steps": [{"tests": [], "seconds": 1}]}, "tests"),
        ({"files": {"a": 1}}, "files"),
        ({"network": True}, "unknown field"),
    ],
)
def test_malformed_script_settings_are_refused(change: dict[str, Any], words: str):
    good: dict[str, Any] = {
        "steps": [{"tests": ["tests"], "seconds": 9}],
        "files": {"tests/test.sh": "sha256:0"},
    }
    assert read_script(good).steps[0].seconds == 9
    with pytest.raises(RubricError, match=words):
        read_script({**good, **change})
