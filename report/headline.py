"""What the head of a report says: the change from the first to the last Test, and which part moved.

Plain sentences from recorded numbers; no number is put in by hand, and no claim is made that the paired table
does not carry. Must not know how the sentences are shown.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from report.data import Measurement, RunView
from report.numbers import Paired, pair


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of phase changed on Test, summed over its phases, in tasks."""

    name: Literal["Harness phases", "RL phases"]
    gain: int
    phases: int


@dataclass(frozen=True, slots=True)
class Headline:
    first: Measurement
    last: Measurement
    paired: Paired | None
    """Task by task, when both recorded their outcomes."""
    parts: tuple[Part, ...]
    moved: str
    """One sentence: completion, hit rate, or both (REP-05)."""
    names: tuple[str, str] = ("first Test", "last Test")


def headline(view: RunView) -> Headline | None:
    """The first against the last Test; of an adaptation, H0 against the selected program on Val (SCHED-10).

    None when the run has fewer than two such measurements.
    """
    tests = view.boundaries or view.validations
    if len(tests) < 2:
        return None
    first, last = tests[0], tests[-1]
    return Headline(
        names=("first Test", "last Test") if view.boundaries else ("Val, initial", "Val, selected on Train"),
        first=first,
        last=last,
        paired=pair(first.outcomes, last.outcomes),
        parts=_parts(tests),
        moved=_moved(first, last),
    )


def _parts(tests: tuple[Measurement, ...]) -> tuple[Part, ...]:
    gains: dict[str, list[int]] = {"phase_end_test": [], "export_test": []}
    for before, after in pairwise(tests):
        # Only a start and an end of the same phase, on equally many tasks, may be subtracted.
        if after.kind in gains and before.phase == after.phase and before.total == after.total:
            gains[after.kind].append(after.correct - before.correct)
    parts = (
        Part("Harness phases", sum(gains["phase_end_test"]), len(gains["phase_end_test"])),
        Part("RL phases", sum(gains["export_test"]), len(gains["export_test"])),
    )
    return tuple(part for part in parts if part.phases)


def _moved(first: Measurement, last: Measurement) -> str:
    finished = f"readable first answers went from {first.valid}/{first.total} to {last.valid}/{last.total}"
    hits = f"right ones among them from {first.correct}/{first.valid} to {last.correct}/{last.valid}"
    if first.completion is None or last.completion is None:
        return ""
    completion = last.completion - first.completion
    hit_rate = (last.hit_rate or 0.0) - (first.hit_rate or 0.0)
    lead = {
        (True, True): "Both parts rose",
        (True, False): "The gain is completion, not hit rate",
        (False, True): "The gain is hit rate, not completion",
        (False, False): "Neither part rose",
    }[(completion > 0, hit_rate > 0)]
    return f"{lead}: {finished}, {hits}."
