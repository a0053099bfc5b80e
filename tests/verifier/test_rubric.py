"""Rubrics: R of the paper's equation 6, what is refused before a rollout, and the declarative checks."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.rubric import Criterion, Rubric, read_rubric, reward
from verifier.rubric_checks import JudgeCheck, RubricError, measure, read_check
from verifier.safe_pattern import unsafe

SHARES = st.floats(0, 1)
WEIGHTS = st.floats(0, 1e6)


@st.composite
def measured_rubrics(draw: st.DrawFn) -> tuple[Rubric, dict[str, float]]:
    weights = draw(st.lists(WEIGHTS, min_size=1, max_size=8).filter(any))
    criteria = [Criterion(f"c{n}", "a description", w, JudgeCheck()) for n, w in enumerate(weights)]
    return Rubric(tuple(criteria)), {c.name: draw(SHARES) for c in criteria}


def plain(*checks: dict[str, Any], weights: tuple[float, ...] = (), **fields: Any) -> dict[str, Any]:
    criteria = [
        {"name": f"c{n}", "description": "d", "weight": weights[n] if weights else 1, "check": check}
        for n, check in enumerate(checks)
    ]
    return {"criteria": criteria, **fields}


@pytest.mark.spec("RL-04")
@given(measured_rubrics())
def test_r_lies_between_the_least_and_the_most_satisfied_criterion(case: tuple[Rubric, dict[str, float]]):
    rubric, satisfied = case
    counted = [satisfied[c.name] for c in rubric.criteria if c.weight]
    found = reward(rubric, satisfied)
    assert 0.0 <= found <= 1.0
    assert min(counted) - 1e-12 <= found <= max(counted) + 1e-12


@given(measured_rubrics(), st.data())
def test_r_never_falls_when_a_criterion_is_satisfied_more(case: Any, data: st.DataObject):
    rubric, satisfied = case
    name = data.draw(st.sampled_from(sorted(satisfied)))
    more = {**satisfied, name: data.draw(st.floats(satisfied[name], 1))}
    assert reward(rubric, more) >= reward(rubric, satisfied)


@given(measured_rubrics(), st.floats(1e-3, 1e3))
def test_r_does_not_depend_on_the_scale_of_the_weights(case: Any, scale: float):
    rubric, satisfied = case
    scaled = Rubric(
        tuple(Criterion(c.name, c.description, c.weight * scale, c.check) for c in rubric.criteria)
    )
    if any(c.weight for c in scaled.criteria):
        assert math.isclose(reward(scaled, satisfied), reward(rubric, satisfied), abs_tol=1e-9)


@given(measured_rubrics())
def test_r_is_exactly_one_when_everything_is_satisfied_and_exactly_zero_when_nothing_is(case: Any):
    rubric, satisfied = case
    assert reward(rubric, dict.fromkeys(satisfied, 1.0)) == 1.0
    assert reward(rubric, dict.fromkeys(satisfied, 0.0)) == 0.0


@pytest.mark.spec("RL-04")
def test_r_is_the_weighted_mean_of_equation_6():
    rubric = read_rubric(plain({"kind": "judge"}, {"kind": "judge"}, {"kind": "judge"}, weights=(3, 1, 0)))
    assert reward(rubric, {"c0": 0.5, "c1": 1.0, "c2": 0.0}) == (3 * 0.5 + 1) / 4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.01, 1.01])
def test_a_satisfaction_that_is_no_share_is_an_error_and_never_a_zero(value: float):
    rubric = read_rubric(plain({"kind": "judge"}, {"kind": "judge"}))
    with pytest.raises(RubricError, match="c1"):
        reward(rubric, {"c0": 1.0, "c1": value})


def test_a_criterion_that_was_not_measured_is_an_error():
    rubric = read_rubric(plain({"kind": "judge"}, {"kind": "judge"}))
    with pytest.raises(RubricError, match="'c1' is not measured"):
        reward(rubric, {"c0": 1.0})
    with pytest.raises(RubricError, match="'other' is unknown"):
        reward(rubric, {"c0": 1.0, "c1": 1.0, "other": 1.0})


JUDGE = {"kind": "judge"}
REFUSED = [
    (plain(JUDGE, JUDGE, weights=(0, 0)), "all weights are 0"),
    (plain(JUDGE, weights=(-1,)), "weight"),
    (plain(JUDGE, weights=(math.nan,)), "finite"),
    (plain(JUDGE, weights=(True,)), "finite"),
    (plain(JUDGE, weights=(1e7,)), "between 0 and"),
    (plain(JUDGE, pass_mark=0), "pass_mark"),
    (plain(JUDGE, pass_mark=1.5), "pass_mark"),
    ({"criteria": []}, "1 to 64"),
    ({"criteria": [{**plain(JUDGE)["criteria"][0]}] * 2}, "same name"),
    ({"criteria": [{"name": "a", "description": "d", "weight": 1}]}, "check is missing"),
    (plain({"kind": "python", "code": "1"}), "kind"),
    (plain({"kind": "contains", "texts": []}), "texts"),
    (plain({"kind": "contains", "texts": [" "]}), "texts"),
    (plain({"kind": "pattern", "pattern": "("}), "no regular expression"),
    (plain({"kind": "pattern", "pattern": "(a+)+"}), "repeat within a repeat"),
    (plain({"kind": "number"}), "at_least"),
    (plain({"kind": "number", "at_least": 2, "at_most": 1}), "smaller one first"),
    (plain({"kind": "judge", "model": "x"}), "unknown field 'model'"),
    ("a text", "is an object"),
]


@pytest.mark.parametrize(("stated", "words"), REFUSED)
def test_a_rubric_that_cannot_be_measured_is_refused_before_any_rollout(stated: Any, words: str):
    with pytest.raises(RubricError, match=words):
        read_rubric(stated)


def test_the_refusal_of_a_rubric_shows_none_of_its_content():
    secret = "the hidden criterion"
    for check in ({"kind": "contains", "texts": [secret, ""]}, {"kind": "pattern", "pattern": secret + "("}):
        stated = plain(check)
        stated["criteria"][0]["description"] = secret
        with pytest.raises(RubricError) as caught:
            read_rubric(stated)
        assert secret not in str(caught.value)


MEASURED = [
    ({"kind": "contains", "texts": ["TP53", "hot spot"]}, "mutated tp53", "", 0.5),
    ({"kind": "contains", "texts": ["TP53"], "within": "text"}, "", "so TP53", 1.0),
    ({"kind": "contains", "texts": ["TP53"]}, "", "only outside: TP53", 0.0),
    ({"kind": "pattern", "pattern": r"p\s*<\s*0\.05"}, "x\nwith p < 0.05", "", 1.0),
    ({"kind": "pattern", "pattern": "^a$"}, "b\na\n", "", 1.0),
    ({"kind": "pattern", "pattern": "a.b"}, "a\nb", "", 0.0),
    ({"kind": "number", "at_least": 1, "at_most": 2}, "about 1.5 mM", "", 1.0),
    ({"kind": "number", "at_least": 1}, "no number", "", 0.0),
    ({"kind": "number", "at_most": 0}, "\u22123e2", "", 1.0),
    ({"kind": "number", "at_least": 1000, "at_most": 1000}, "1,000 cells", "", 1.0),
    ({"kind": "number", "at_least": 7, "at_most": 7, "after": "DOSE:"}, "3 times, dose: 7 mg", "", 1.0),
    ({"kind": "number", "at_least": 7, "after": "dose"}, "7", "", 0.0),
    ({"kind": "number", "at_least": 0}, "9e999", "", 0.0),
]


@pytest.mark.parametrize(("stated", "content", "text", "expected"), MEASURED)
def test_declarative_checks_measure_what_their_table_says(
    stated: dict[str, Any], content: str, text: str, expected: float
):
    assert measure(read_check(stated, "c"), content, text) == expected  # type: ignore[arg-type]


@given(st.text(max_size=300), st.sampled_from([row[0] for row in MEASURED]))
def test_a_declarative_check_gives_a_share_for_any_text(text: str, stated: dict[str, Any]):
    assert 0.0 <= measure(read_check(stated, "c"), text, text) <= 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pattern", ["(a+)+", r"(a)\1", "a*a*a*", "a{0,16}a{0,16}", "(?:a{0,3}){0,3}", "a" * 301]
)
def test_a_pattern_without_a_bound_on_its_time_is_refused(pattern: str):
    assert unsafe(pattern)


@pytest.mark.parametrize("pattern", ["TP53", r"\bp\s*[<=]\s*0\.\d{1,6}\b", "(?i)hot[ -]?spot", "a|b|c"])
def test_ordinary_patterns_are_allowed(pattern: str):
    assert unsafe(pattern) == ""
