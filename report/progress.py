"""Live progress of a run: bars on a terminal, plain lines elsewhere.

Owns what the person sees while waiting. It must never raise into the run, and must not know what a phase
does: the run tells it names and counts. Safe to call from many threads; several stages may be open at once.
"""

import contextlib
import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any, Concatenate, Final, ParamSpec, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Column

from broker.record import GradedEpisode
from report.data import KIND_LABELS
from report.numbers import duration

_QUIET_SECONDS: Final = 5.0
"""Least time between two plain lines that only count."""
_WINDOW_SECONDS: Final = 60.0
"""Generation speed is that of the last minute."""
_P = ParamSpec("_P")


class _Console(Console):
    """A console whose reader may go away."""

    def on_broken_pipe(self) -> None:
        # rich would end the whole process here.
        self.quiet = True


class _Locked(Protocol):
    @property
    def lock(self) -> threading.RLock: ...


def _never_raises(method: Callable[Concatenate[Any, _P], None]) -> Callable[Concatenate[Any, _P], None]:
    # A closed terminal or a full pipe must not end a run of hours.
    @functools.wraps(method)
    def guarded(self: _Locked, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        with contextlib.suppress(Exception), self.lock:
            method(self, *args, **kwargs)

    return guarded


class StageBar:
    """One open stage. Made by `RunProgress.stage`; a context manager that finishes itself."""

    def __init__(self, run: "RunProgress", name: str, total: int, unit: str, weight: float) -> None:
        self.name, self.total, self.unit, self.weight = name, total, unit, weight
        self.done = 0
        self.begun = time.monotonic()
        self.numbers: dict[str, float] = {}
        self.bar: TaskID | None = None
        self.lock = run.lock
        self._run = run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    @_never_raises
    def advance(self, n: int = 1, **numbers: float) -> None:
        """`n` more units are done; numbers (`reward`, `tokens_per_second`, ...) are shown beside the bar."""
        self.done += n
        self.numbers.update(numbers)
        self._run.advanced(self, n)

    @_never_raises
    def episode(self, episode: GradedEpisode) -> None:
        """One more episode is over; its generated tokens make the speed that is shown."""
        self._run.generated(sum(call.completion.generated_tokens for call in episode.record.model_calls))
        self.done += 1
        self._run.advanced(self, 1)

    @_never_raises
    def finish(self) -> None:
        """The stage is over; again is harmless."""
        self._run.finished(self)

    def seconds_left(self) -> float | None:
        """Estimate for this stage alone; None before anything is done."""
        if self.done <= 0:
            return None
        return max(0.0, (time.monotonic() - self.begun) * (self.total - self.done) / self.done)


class RunProgress:
    """Progress of one run.

    >>> with RunProgress() as progress:
    ...     progress.expect(1120)                      # episodes of the whole run, for the time left
    ...     progress.phase("h0001", 6, 1)
    ...     with progress.stage("step 1: Val", 240, "episodes") as bar:
    ...         bar.episode(episode)                   # or bar.advance(1, reward=0.25)
    ...     progress.note("step 1: candidate 2 adopted, Val 31/60 -> 44/60")

    Time left is an estimate by weight: `expect` says how many units the whole run has (an update may count as
    its episodes, see `stage(weight=...)`). Without it the time left is that of each stage alone.
    """

    def __init__(self, stream: IO[str] | None = None, *, live: bool | None = None) -> None:
        self.lock = threading.RLock()
        self._console = _Console(file=stream or sys.stderr)
        self._live = self._console.is_terminal if live is None else live
        self._bars: Progress | None = None
        self._phase = ""
        self._phase_bar: TaskID | None = None
        self._open: list[StageBar] = []
        self._expected = self._spent = 0.0
        self._begun = time.monotonic()
        self._tokens: deque[tuple[float, int]] = deque()
        self._last_line = 0.0

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @_never_raises
    def _start(self) -> None:
        if self._live:
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.fields[name]}", markup=False),
                BarColumn(bar_width=16),
                MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9)),
                TextColumn("{task.fields[note]}", markup=False),
                console=self._console,
                refresh_per_second=4,
                transient=True,
            )
            self._bars.start()

    @_never_raises
    def _stop(self) -> None:
        bars, self._bars, self._phase_bar = self._bars, None, None
        if bars is not None:
            bars.stop()

    @_never_raises
    def expect(self, total_units: float) -> None:
        """Weight of the whole run, in the units of `advance` times their stage's weight."""
        self._expected = float(total_units)

    @_never_raises
    def phase(self, name: str, total_phases: int, index: int) -> None:
        """A new phase begins; `index` counts from 1."""
        self._phase = name
        if self._bars is None:
            self._line(f"phase {name} ({index} of {total_phases})")
            return
        if self._phase_bar is None:
            self._phase_bar = self._bars.add_task("", total=total_phases, name="", note="")
        self._bars.update(self._phase_bar, completed=index - 1, total=total_phases, name=_plain(name))
        self._show_totals()

    def stage(self, name: str, total: int, unit: str, weight: float = 1.0) -> StageBar:
        """A new stage of `total` units begins; `weight` is what one unit counts of `expect`'s total.

        A measurement's kind as the name is shown in words.
        """
        stage = StageBar(self, KIND_LABELS.get(name, name.replace("_", " ")), total, unit, weight)
        self._opened(stage)
        return stage

    @_never_raises
    def _opened(self, stage: StageBar) -> None:
        self._open.append(stage)
        if self._bars is None:
            self._line(f"{self._place(stage)}: {stage.total} {stage.unit}")
        else:
            name = "  " + _plain(stage.name)
            stage.bar = self._bars.add_task("", total=stage.total, name=name, note=stage.unit)

    def advance(self, n: int = 1, **numbers: float) -> None:
        """`StageBar.advance` of the stage that was opened last; without one, nothing."""
        if self._open:
            self._open[-1].advance(n, **numbers)

    def finish_stage(self) -> None:
        """`StageBar.finish` of the stage that was opened last; without one, nothing."""
        if self._open:
            self._open[-1].finish()

    @_never_raises
    def note(self, text: str) -> None:
        """One noteworthy event, kept on the screen."""
        self._line(text)

    @_never_raises
    def generated(self, tokens: int) -> None:
        """So many tokens were generated since the last call."""
        self._tokens.append((time.monotonic(), tokens))

    def advanced(self, stage: StageBar, n: int) -> None:
        """Called by a stage with the lock held."""
        self._spent += n * stage.weight
        if self._bars is not None and stage.bar is not None:
            self._bars.update(stage.bar, completed=stage.done, note=self._summary(stage))
            self._show_totals()
        elif time.monotonic() - self._last_line >= _QUIET_SECONDS:
            parts = [
                f"{self._place(stage)}: {stage.done}/{stage.total} {self._summary(stage)}",
                *self._totals(),
            ]
            self._line(" · ".join(parts))

    def finished(self, stage: StageBar) -> None:
        """Called by a stage with the lock held."""
        if stage not in self._open:
            return
        self._open.remove(stage)
        if self._expected > 0:
            # What a stage did not need (cached, dropped) leaves the expected work. It is not counted as
            # done: it took no time and would make the rest look faster than it is.
            self._expected -= max(0, stage.total - stage.done) * stage.weight
        if self._bars is not None and stage.bar is not None:
            self._bars.remove_task(stage.bar)
        elif stage.done:
            seconds = duration(time.monotonic() - stage.begun)
            self._line(f"{self._place(stage)}: {stage.done}/{stage.total} {stage.unit} done in {seconds}")

    def seconds_left(self) -> float | None:
        """Estimate for the whole run; None without `expect`, or before anything is done."""
        if self._expected <= 0 or self._spent <= 0:
            return None
        elapsed = time.monotonic() - self._begun
        return max(0.0, elapsed * (self._expected - self._spent) / self._spent)

    def _totals(self) -> list[str]:
        parts: list[str] = []
        now = time.monotonic()
        while self._tokens and now - self._tokens[0][0] > _WINDOW_SECONDS:
            self._tokens.popleft()
        span = min(_WINDOW_SECONDS, now - self._begun)
        if self._tokens and span > 0:
            parts.append(f"{sum(tokens for _, tokens in self._tokens) / span:,.0f} tokens/s")
        left = self.seconds_left()
        if left is not None:
            parts.append(f"about {duration(left)} left")
        return parts

    def _show_totals(self) -> None:
        if self._bars is not None and self._phase_bar is not None:
            self._bars.update(self._phase_bar, note=" · ".join(["phases", *self._totals()]))

    def _summary(self, stage: StageBar) -> str:
        parts = [stage.unit]
        for name, value in stage.numbers.items():
            shown = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
            parts.append(f"{shown} {'tokens/s' if name == 'tokens_per_second' else name.replace('_', ' ')}")
        left = stage.seconds_left() if self._expected <= 0 else None
        if left is not None:
            parts.append(f"about {duration(left)} left")
        return " · ".join(parts)

    def _place(self, stage: StageBar) -> str:
        return f"{self._phase} · {stage.name}" if self._phase else stage.name

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        # Text comes from programs and models: no markup, no control characters.
        self._console.print(_plain(text), markup=False, highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
