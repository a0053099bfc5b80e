"""The order of Train tasks is fixed by seed and ids; one cursor runs through all phases."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_lab.schedule import cursor_at, draw, plan, train_order

IDS = [f"task-{number}" for number in range(20)]


@pytest.mark.spec("SCHED-05")
def test_the_order_depends_on_seed_and_ids_and_on_nothing_else() -> None:
    assert train_order(1, IDS) == train_order(1, list(reversed(IDS)))
    assert train_order(1, IDS) != train_order(2, IDS)
    assert sorted(train_order(1, IDS)) == sorted(IDS)


@pytest.mark.spec("SCHED-05")
def test_the_cursor_runs_through_all_phases_without_a_gap() -> None:
    order = train_order(1, IDS)
    drawn = [
        task
        for cycle in (1, 2, 3)
        for step in (1, 2)
        for task in draw(order, cursor_at(cycle, step, steps=2, interactions=3), 3)
    ]
    assert drawn == list(order[:18])


@pytest.mark.spec("SCHED-05")
@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 12), draws=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_no_task_comes_again_before_the_list_is_exhausted_and_the_plan_says_so(
    size: int, draws: list[int]
) -> None:
    order, cursor, seen = train_order(3, IDS[:size]), 0, list[str]()
    for count in draws:
        seen += draw(order, cursor, count)
        cursor += count
    assert len(set(seen[:size])) == min(size, len(seen))
    assert plan(size, cycles=1, steps=1, interactions=len(seen)).wraps == (len(seen) > size)


def test_an_empty_train_split_is_refused() -> None:
    with pytest.raises(ValueError, match="no Train task"):
        draw((), 0, 1)
