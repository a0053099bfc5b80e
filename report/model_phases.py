"""What a run of `mode=model` shows besides its boundaries: pass@k, and Val between updates (SCHED-09).

Only recorded numbers. Must not know how they are drawn, nor how pass@k is estimated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PERIODIC: Final = "periodic_val"
PASSES: Final = ("pass_before", "pass_after")
APART: Final = (PERIODIC, *PASSES)
"""Kinds of measurements that are none of the schedule's boundaries."""


@dataclass(frozen=True, slots=True)
class Gain:
    """After less before, the mean over tasks, with a 95 % bootstrap interval clustered by material group."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PassAt:
    """One sample of every Test task: another number than accuracy, with attempts of its own (REP-01)."""

    kind: str
    harness: str
    model: str
    attempts: int
    """Of each task."""
    tasks: int
    correct: int
    """Right attempts, of `attempts * tasks`."""
    valid: int
    values: tuple[tuple[int, float], ...]
    """k and pass@k."""
    gains: tuple[tuple[int, Gain], ...]
    """Over the sample before; empty for that one."""
    measured_by: str

    @property
    def total(self) -> int:
        return self.attempts * self.tasks

    def value(self, k: int) -> float | None:
        return dict(self.values).get(k)

    def gain(self, k: int) -> Gain | None:
        return dict(self.gains).get(k)


def passes(rows: Sequence[Mapping[str, Any]], run_id: str) -> tuple[PassAt, ...]:
    """The samples among measurement rows, the one before the RL phases first."""
    found = [_pass(row, run_id) for row in rows if row["kind"] in PASSES]
    return tuple(sorted(found, key=lambda item: PASSES.index(item.kind)))


def _pass(row: Mapping[str, Any], run_id: str) -> PassAt:
    detail: Mapping[str, Any] = row["detail"]
    gains: Mapping[str, Mapping[str, float]] = detail.get("gain") or {}
    return PassAt(
        kind=str(row["kind"]),
        harness=str(row["harness"]),
        model=str(row["model"]),
        attempts=int(detail["attempts"]),
        tasks=int(detail["tasks"]),
        correct=int(row["correct"]),
        valid=int(row["valid"]),
        values=tuple(sorted((int(k), float(value)) for k, value in detail["pass_at"].items())),
        gains=tuple(
            (int(k), Gain(float(gain["mean"]), float(gain["low"]), float(gain["high"])))
            for k, gain in sorted(gains.items(), key=lambda item: int(item[0]))
        ),
        measured_by=str(row.get("run_id") or run_id),
    )
