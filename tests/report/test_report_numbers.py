import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.numbers import duration, mcnemar, pair, percent, wilson


@given(total=st.integers(1, 500), share=st.floats(0, 1))
def test_a_wilson_interval_holds_the_share_and_stays_within_zero_and_one(total: int, share: float):
    correct = round(share * total)
    low, high = wilson(correct, total)
    assert 0 <= low <= correct / total <= high <= 1
    assert low < high


def test_a_wilson_interval_equals_the_published_value():
    # 8 of 10: the textbook interval.
    assert wilson(8, 10) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 0) == (0.0, 1.0)


def test_mcnemar_is_exact():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(2, 1) == 1.0
    assert mcnemar(6, 2) == pytest.approx(0.2890625)
    assert mcnemar(6, 0) == pytest.approx(0.03125)


@given(fixed=st.integers(0, 60), broken=st.integers(0, 60))
def test_mcnemar_does_not_depend_on_the_direction(fixed: int, broken: int):
    assert 0 < mcnemar(fixed, broken) == mcnemar(broken, fixed) <= 1


def test_a_paired_table_needs_the_same_tasks():
    before, after = (
        {"a": True, "b": False, "c": True, "d": False},
        {"a": True, "b": True, "c": False, "d": False},
    )
    table = pair(before, after)
    assert table is not None
    assert (table.both, table.fixed, table.broken, table.neither) == (1, 1, 1, 1)
    assert pair(before, {"a": True}) is None
    assert pair({}, {}) is None


def test_numbers_read_as_words():
    assert [duration(value) for value in (0.04, 9.94, 42, 185, 7800)] == [
        "0.0 s",
        "9.9 s",
        "42 s",
        "3 min 05 s",
        "2 h 10 min",
    ]
    assert percent(None) == "–"
    assert percent(0.3333) == "33.3 %"
