"""Tables for a terminal: what a run ended with. Must not compute anything that the view does not hold."""

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from report.data import ATTEMPTS, SPLIT_LABELS, Measurement, RunView
from report.numbers import percent


def measurement_table(measurements: Iterable[Measurement], view: RunView | None = None) -> Table:
    """One row a measurement: accuracy with denominator and attempt budget (REP-01), and its two parts."""
    shown = list(measurements)
    splits = dict.fromkeys(
        SPLIT_LABELS.get(item.split, item.split) for item in shown if item.kind != "evaluation"
    )
    # Narrow enough for a terminal of 80 columns, and for a log file.
    table = Table(box=SIMPLE_HEAD, caption_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    # One line each: a label must not be broken.
    words = [f"Accuracy of the first answer, {ATTEMPTS} a task", *splits]
    table.caption = Text("\n".join([*words, "valid: a readable first answer · hit: right of the valid"]))
    for heading in ("phase", "measured", "tested", "split"):
        table.add_column(heading, no_wrap=True)
    for heading in ("right", "%", "95 %", "valid", "hit"):
        table.add_column(heading, justify="right", no_wrap=True)
    for item in shown:
        low, high = item.interval
        table.add_row(
            item.phase,
            Text(item.label),
            Text(_tested(item, view)),
            item.split.capitalize(),
            f"{item.correct}/{item.total}",
            Text(percent(item.accuracy).removesuffix(" %"), style="bold"),
            f"{100 * low:.0f}–{100 * high:.0f}",
            f"{item.valid}/{item.total}",
            f"{item.correct}/{item.valid}",
        )
    return table


def _tested(item: Measurement, view: RunView | None) -> str:
    """Program and model, e.g. `H1 M0`; digests without a view."""
    if view is None:
        return f"{item.harness[7:13]} {item.model.removeprefix('sha256:')[:6]}"
    return f"{view.harness_name(item.harness)} {view.model_name(item.model)}"


def pass_table(view: RunView) -> Table:
    """pass@k before and after, one row a k."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
    first = view.passes[0]
    table.title = Text(f"pass@k on Test: {first.attempts} sampled attempts of each of {first.tasks} tasks")
    table.add_column("k", justify="right")
    for item in view.passes:
        table.add_column(f"{item.kind.removeprefix('pass_')} {view.model_name(item.model)}", justify="right")
    table.add_column("gain, 95 %", justify="right")
    for k, _ in first.values:
        gain = view.passes[-1].gain(k)
        change = f"{100 * gain.mean:+.1f} ({100 * gain.low:+.0f} to {100 * gain.high:+.0f})" if gain else "–"
        table.add_row(str(k), *(percent(item.value(k)) for item in view.passes), change)
    return table


def run_table(view: RunView) -> Table:
    """Test at every boundary, and Val of every parent and adopted program, in the schedule's order."""
    table = measurement_table(view.journey, view)
    table.title = Text(f"Run {view.run_id}: Test and Val at each boundary")
    table.title_justify = "left"
    return table


def print_run(view: RunView, console: Console | None = None) -> None:
    """The table at the end of a run."""
    out = console or Console()
    out.print(run_table(view))
    if view.passes:
        out.print(pass_table(view))
    if view.no_training:
        out.print(Text(f"The release {view.release} asks not to be trained on; this run's models were."))
