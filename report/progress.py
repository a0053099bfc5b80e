"""Live progress of a run: bars on a terminal, plain lines elsewhere.

Owns what the person sees while waiting. It must never raise into the run, and must not know what a phase
does: the run tells it names and counts. Safe to call from many threads.
"""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Concatenate, Final, ParamSpec, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn

from report.numbers import duration

_QUIET_SECONDS: Final = 5.0
"""Least time between two plain lines about the same stage."""
_RATES: Final = ("tokens_per_second",)
"""Numbers that are speeds already; every other number is shown as it was last given."""
_P = ParamSpec("_P")


def _never_raises(
    method: Callable[Concatenate["RunProgress", _P], None],
) -> Callable[Concatenate["RunProgress", _P], None]:
    # A closed terminal or a full pipe must not end a run of hours.
    @functools.wraps(method)
    def guarded(self: "RunProgress", /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        with contextlib.suppress(Exception), self._lock:  # pyright: ignore[reportPrivateUsage]
            method(self, *args, **kwargs)

    return guarded


class RunProgress:
    """Progress of one run.

    >>> with RunProgress() as progress:
    ...     progress.expect(1120)                      # episodes of the whole run, for the time left
    ...     progress.phase("h0001", 6, 1)
    ...     progress.stage("step 1: Val", 240, "episodes")
    ...     progress.advance(tokens_per_second=812.0)  # after each episode
    ...     progress.finish_stage()
    ...     progress.note("step 1: candidate 2 adopted, Val 31/60 -> 44/60")

    Time left is an estimate by weight: `expect` says how many units the whole run has (an update may count as
    its episodes, see `stage(weight=...)`); without it the time left is that of the current stage alone.
    """

    def __init__(self, stream: IO[str] | None = None, *, live: bool | None = None) -> None:
        self._console = Console(file=stream or sys.stderr)
        self._live = self._console.is_terminal if live is None else live
        self._lock = threading.RLock()
        self._bars: Progress | None = None
        self._phase_bar: TaskID | None = None
        self._stage_bar: TaskID | None = None
        self._phase = ""
        self._stage = ""
        self._unit = ""
        self._total = self._done = 0
        self._weight = 1.0
        self._expected = self._spent = 0.0
        self._numbers: dict[str, float] = {}
        self._begun = self._stage_begun = time.monotonic()
        self._last_line = 0.0

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @_never_raises
    def _open(self) -> None:
        if not self._live:
            return
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[name]}", markup=True),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console,
            refresh_per_second=4,
        )
        self._bars.start()

    @_never_raises
    def _close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    @_never_raises
    def expect(self, total_units: float) -> None:
        """Weight of the whole run, in the units of `advance` times their stage's weight."""
        self._expected = float(total_units)

    @_never_raises
    def phase(self, name: str, total_phases: int, index: int) -> None:
        """A new phase begins; `index` counts from 1."""
        self._phase = name
        if self._bars is None:
            self._line(f"phase {name} ({index} of {total_phases})", always=True)
            return
        if self._phase_bar is None:
            self._phase_bar = self._bars.add_task("", total=total_phases, name="", note="phases done")
        self._bars.update(self._phase_bar, completed=index - 1, total=total_phases, name=_safe(name))

    @_never_raises
    def stage(self, name: str, total: int, unit: str, weight: float = 1.0) -> None:
        """A new stage of `total` units begins; `weight` is what one unit counts of `expect`'s total."""
        self._stage, self._total, self._unit, self._weight = name, total, unit, weight
        self._done, self._numbers, self._stage_begun = 0, {}, time.monotonic()
        if self._bars is None:
            self._line(f"{self._phase} · {name}: {total} {unit}", always=True)
            return
        if self._stage_bar is not None:
            self._bars.remove_task(self._stage_bar)
        self._stage_bar = self._bars.add_task("", total=total, name="  " + _safe(name), note=unit)

    @_never_raises
    def advance(self, n: int = 1, **numbers: float) -> None:
        """`n` more units are done; numbers (`tokens_per_second`, `reward`, ...) are shown beside the bar."""
        self._done += n
        self._spent += n * self._weight
        self._numbers.update(numbers)
        if self._bars is None:
            self._line(f"{self._phase} · {self._stage}: {self._done}/{self._total} {self._summary()}")
        elif self._stage_bar is not None:
            self._bars.update(self._stage_bar, completed=self._done, note=self._summary())

    @_never_raises
    def note(self, text: str) -> None:
        """One noteworthy event, kept on the screen."""
        self._line(text, always=True)

    @_never_raises
    def finish_stage(self) -> None:
        """The stage is over; what it did not need (cached, dropped) leaves the expected work."""
        if self._expected > 0:
            # Not counted as done: it took no time and would make the rest look faster than it is.
            self._expected -= max(0, self._total - self._done) * self._weight
        seconds = duration(time.monotonic() - self._stage_begun)
        if self._bars is None:
            self._line(
                f"{self._phase} · {self._stage}: done, {self._done}/{self._total} {self._unit} in {seconds}",
                always=True,
            )
        elif self._stage_bar is not None:
            self._bars.remove_task(self._stage_bar)
            self._stage_bar = None
        self._stage, self._total, self._done = "", 0, 0

    def seconds_left(self) -> float | None:
        """Estimate for the run if `expect` was called, else for the stage; None before anything is done."""
        now = time.monotonic()
        if self._expected > 0:
            done, total, begun = self._spent, self._expected, self._begun
        else:
            done, total, begun = float(self._done), float(self._total), self._stage_begun
        if done <= 0:
            return None
        return max(0.0, (now - begun) * (total - done) / done)

    def _summary(self) -> str:
        parts = [self._unit]
        for name, value in self._numbers.items():
            shown = f"{value:,.0f}" if name in _RATES or value == int(value) else f"{value:.3g}"
            parts.append(f"{shown} {'tokens/s' if name == 'tokens_per_second' else name.replace('_', ' ')}")
        left = self.seconds_left()
        if left is not None:
            parts.append(f"about {duration(left)} left")
        return " · ".join(parts)

    def _line(self, text: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if not always and now - self._last_line < _QUIET_SECONDS:
            return
        self._last_line = now
        # Text comes from programs and models: no markup, no control characters.
        self._console.print(_plain(text), markup=False, highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _safe(text: str) -> str:
    return _plain(text).replace("[", "\\[")
