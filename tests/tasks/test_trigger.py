"""When a harness phase hands over to RL, and what then happens to the model (SCHED-01, SCHED-06)."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

import flows.cycle
from catalog.digest import digest_bytes
from catalog.store import Ref
from tasks import session as sessions
from tasks.session import Session
from tasks.trigger import hands_over

SAME = Ref(kind="blob", digest=digest_bytes(b"h0"), size=1)
OTHER = Ref(kind="blob", digest=digest_bytes(b"h1"), size=1)


@contextmanager
def a_run(trigger: str, tests: tuple[int, int] = (0, 0), cycles: int = 3) -> Iterator[list[str]]:
    """A session whose first phase had these Test results; gives the notes that were made."""
    notes: list[str] = []
    rows = [
        SimpleNamespace(kind=kind, cycle=1, correct=correct)
        for kind, correct in zip(("phase_baseline_test", "phase_end_test"), tests, strict=True)
    ]
    made = SimpleNamespace(
        run_id="r",
        config=SimpleNamespace(schedule=SimpleNamespace(trigger=trigger, cycles=cycles)),
        catalog=SimpleNamespace(measurements=lambda _run: rows),
        progress=SimpleNamespace(note=notes.append),
    )
    token = sessions._current.set(cast(Session, made))
    try:
        yield notes
    finally:
        sessions._current.reset(token)


@pytest.mark.spec("SCHED-06")
@pytest.mark.parametrize(
    ("selected", "tests", "expected"),
    [(OTHER, (3, 4), True), (OTHER, (4, 4), False), (OTHER, (4, 3), False), (SAME, (3, 4), False)],
)
def test_trigger_improvement_needs_another_program_and_more_right_on_test(
    selected: Ref, tests: tuple[int, int], expected: bool
) -> None:
    with a_run("improvement", tests) as notes:
        assert hands_over(1, SAME, selected) is expected
    assert bool(notes) is not expected, "a phase that does not hand over says why"


@pytest.mark.spec("SCHED-06")
@pytest.mark.parametrize("selected", [SAME, OTHER])
def test_trigger_always_debug_hands_over_whatever_test_says(selected: Ref) -> None:
    with a_run("always_debug", (9, 1)):
        assert hands_over(1, SAME, selected)


@pytest.mark.spec("SCHED-01", "SCHED-02", "SCHED-06")
@pytest.mark.parametrize(
    ("handed", "expected"),
    [
        ((True, True, True), "h1 M0 H0, r1 M0 H1, h2 M1 H1, r2 M1 H2, h3 M2 H2, r3 M2 H3"),
        ((True, False, True), "h1 M0 H0, r1 M0 H1, h2 M1 H1, h3 M1 H2, r3 M1 H3"),
    ],
)
async def test_a_phase_that_does_not_hand_over_keeps_model_and_selected_program(
    handed: tuple[bool, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    async def harness_phase(cycle: int, model: Any, harness: Any, history: Any) -> tuple[Any, Any]:
        made.append(f"h{cycle} {model} {harness}")
        return f"H{cycle}", history

    async def rl_phase(cycle: int, model: Any, harness: Any) -> Any:
        made.append(f"r{cycle} {model} {harness}")
        return f"M{int(model[1:]) + 1}"

    monkeypatch.setattr(flows.cycle, "harness_phase", harness_phase)
    monkeypatch.setattr(flows.cycle, "rl_phase", rl_phase)
    monkeypatch.setattr(flows.cycle, "hands_over", lambda cycle, before, after: handed[cycle - 1])
    with a_run("always_debug"):
        await flows.cycle.cycles(cast(Ref, "M0"), cast(Ref, "H0"))
    assert ", ".join(made) == expected
