"""The figures of a report, as inline SVG text.

Deterministic: equal views give equal bytes. Colours are CSS variables of the page (`--ink`, `--s1` ...), so
one drawing serves light, dark and paper; the palette is told apart with every common colour deficiency, and
no figure speaks by colour alone. Must not know records, tables or HTML beyond the SVG itself.
"""
# matplotlib's own type stubs leave most keyword arguments untyped.
# pyright: reportUnknownMemberType=false

import io
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.data import LAYERS, Measurement, RunView

# Colours that matplotlib can hold; each is replaced by a CSS variable when the drawing is done.
_INK, _MUTED, _GRID, _PAPER = "#010203", "#010204", "#010205", "#010206"
_SERIES: Final = ("#010211", "#010212", "#010213", "#010214", "#010215", "#010216")
_VARIABLES: Final = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _GRID: "var(--rule)",
    _PAPER: "var(--paper)",
    **{colour: f"var(--s{number})" for number, colour in enumerate(_SERIES, start=1)},
}
_LAYER_COLOURS: Final = dict(
    zip(LAYERS, (_SERIES[0], _SERIES[1], _SERIES[2], _SERIES[3], _SERIES[4]), strict=True)
)
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.labelcolor": _MUTED,
    "axes.edgecolor": _GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _GRID,
    "xtick.labelcolor": _INK,
    "ytick.color": _GRID,
    "ytick.labelcolor": _MUTED,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "path.simplify": False,
}
_CENTRE: Final[dict[str, Any]] = {"ha": "center", "va": "center"}


def accuracy_figure(view: RunView) -> str:
    """Test at every boundary with its Wilson 95 % interval; Val of parents and candidates between them."""
    if not view.boundaries:
        return ""
    figure, axes = _canvas(9.6, 4.3)
    places = _places(view)
    boundaries = view.boundaries
    spots = [places[id(item)] for item in boundaries]
    shares = [100 * (item.accuracy or 0.0) for item in boundaries]
    errors = [
        [share - 100 * item.interval[0] for item, share in zip(boundaries, shares, strict=True)],
        [100 * item.interval[1] - share for item, share in zip(boundaries, shares, strict=True)],
    ]
    line: dict[str, Any] = {"color": _SERIES[0], "linewidth": 2.2, "marker": "o"}
    axes.errorbar(spots, shares, errors, elinewidth=1.1, capsize=3, **line)
    _point_labels(axes, boundaries, spots)
    _val_points(axes, view, places)
    _phase_bands(axes, view, places)
    axes.set_ylim(-3, 103)
    axes.set_ylabel("first answers right, %")
    handles, labels = axes.get_legend_handles_labels()
    test = axes.plot([], [], **line)[0]
    axes.legend(
        [test, *handles],
        ["Test, with 95 % interval", *labels],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=4,
    )
    return _svg(figure, "accuracy")


def adaptation_figure(view: RunView) -> str:
    """Accuracy of each batch of an adaptation, and the best so far (SCHED-10)."""
    items = [item for item in view.batches if item.step is not None]
    if not items:
        return ""
    figure, axes = _canvas(9.6, 3.6)
    places = [item.step or 0 for item in items]
    shares = [100 * (item.accuracy or 0.0) for item in items]
    axes.step(
        places,
        list(accumulate(shares, max)),
        where="post",
        color=_SERIES[0],
        linewidth=2.0,
        label="best so far",
    )
    names = [view.harness_name(item.harness) for item in items]
    for name in dict.fromkeys(names):
        own = [index for index, known in enumerate(names) if known == name]
        look: dict[str, Any] = {"color": _MUTED, "linewidth": 1.2, "marker": "o", "markersize": 5}
        axes.plot([places[i] for i in own], [shares[i] for i in own], **look)
        place = (places[own[0]], shares[own[0]])
        # Beside the point: where the best so far rises, a line runs down from it.
        offset: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, -12), "ha": "left"}
        axes.annotate(name, place, fontsize=9, color=_INK, **offset)
    axes.set_ylim(-10, 103)
    axes.set_xlabel("batch")
    axes.set_ylabel("first answers right, %")
    axes.set_xticks(places if len(places) <= 24 else places[:: len(places) // 12])
    batch = axes.plot([], [], color=_MUTED, marker="o", markersize=5, linewidth=1.2)[0]
    best = axes.get_legend_handles_labels()[0][0]
    axes.legend(
        [batch, best],
        [f"a batch of {items[0].total} conversations, by program", "best so far"],
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=2,
    )
    return _svg(figure, "adaptation")


def _point_labels(axes: Axes, boundaries: Sequence[Measurement], spots: Sequence[float]) -> None:
    """Counts beside the Test points: ends above, starts below, and equal neighbours only once."""
    shown = ""
    for item, spot in zip(boundaries, spots, strict=True):
        label, end = f"{item.correct}/{item.total}", _moment(item) == "end"
        if label != shown:
            look: dict[str, Any] = {"fontsize": 9.5, "color": _INK, "ha": "right" if end else "left"}
            offset = (-5, 6) if end else (5, -14)
            height = 100 * (item.accuracy or 0.0)
            axes.annotate(label, (spot, height), textcoords="offset points", xytext=offset, **look)
        shown = label


def _places(view: RunView) -> dict[int, float]:
    """Where each measurement stands on the horizontal axis: phases side by side, steps inside a phase."""
    places: dict[int, float] = {}
    phases = list(dict.fromkeys(item.phase for item in view.measurements if item.kind != "evaluation"))
    for index, phase in enumerate(phases):
        steps = sorted({item.step or 0 for item in view.selections if item.phase == phase})
        for item in view.measurements:
            if item.phase != phase or item.kind == "evaluation":
                continue
            if item.split == "val":
                offset = 0.1 + 0.8 * (steps.index(item.step or 0) + 1) / (len(steps) + 1)
                offset += 0.045 if item.kind == "step_val_candidate" else 0.0
            else:
                offset = 0.1 if item.kind in ("phase_baseline_test", "rl_baseline_test") else 0.9
            places[id(item)] = index + offset
    return places


def _val_points(axes: Axes, view: RunView, places: dict[int, float]) -> None:
    groups: dict[str, list[Measurement]] = {"Val, parent": [], "Val, adopted": [], "Val, other candidate": []}
    for item in view.selections:
        if item.kind == "step_val_parent":
            groups["Val, parent"].append(item)
        else:
            groups["Val, adopted" if view.won(item) else "Val, other candidate"].append(item)
    looks: dict[str, dict[str, Any]] = {
        "Val, parent": {"marker": "s", "facecolors": "none", "edgecolors": _MUTED},
        "Val, adopted": {"marker": "D", "facecolors": _SERIES[1], "edgecolors": _SERIES[1]},
        "Val, other candidate": {"marker": "x", "color": _MUTED},
    }
    for name, items in groups.items():
        if items:
            heights = [100 * (item.accuracy or 0.0) for item in items]
            axes.scatter(
                [places[id(item)] for item in items], heights, s=34, label=name, zorder=3, **looks[name]
            )


def _phase_bands(axes: Axes, view: RunView, places: dict[int, float]) -> None:
    phases = list(dict.fromkeys(item.phase for item in view.measurements if id(item) in places))
    for index, phase in enumerate(phases):
        if phase.startswith("r"):
            axes.axvspan(index, index + 1, color=_GRID, alpha=0.35, linewidth=0)
    axes.set_xlim(0, max(1, len(phases)))
    axes.set_xticks([index + 0.5 for index in range(len(phases))])
    axes.set_xticklabels([f"{phase}\n{'RL' if phase[0] == 'r' else 'harness'}" for phase in phases])
    axes.tick_params(axis="x", length=0)


def reward_figure(view: RunView) -> str:
    """Mean training reward of every update, phases side by side. Its samples change at every update."""
    cycles = sorted({item.cycle for item in view.updates if item.reward is not None})
    if not cycles:
        return ""
    figure = Figure(figsize=(9.6, 3.1), layout="constrained")
    all_axes = figure.subplots(1, len(cycles), sharey=True, squeeze=False)[0]
    for axes, cycle in zip(all_axes, cycles, strict=True):
        items = [item for item in view.updates if item.cycle == cycle and item.reward is not None]
        numbers = [item.update for item in items]
        axes.plot(
            numbers,
            [item.reward for item in items],
            color=_SERIES[2],
            marker="o",
            markersize=4,
            linewidth=1.8,
        )
        axes.set_title(f"r{cycle:04d}", fontsize=10.5, loc="left", color=_INK)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("update")
        axes.xaxis.get_major_locator().set_params(integer=True)
    all_axes[0].set_ylabel("mean reward")
    return _svg(figure, "reward")


def periodic_figure(view: RunView) -> str:
    """Val between the updates of each RL phase, with Wilson 95 % intervals (SCHED-09)."""
    cycles = sorted({item.cycle for item in view.periodic})
    if not cycles:
        return ""
    figure = Figure(figsize=(9.6, 3.1), layout="constrained")
    all_axes = figure.subplots(1, len(cycles), sharey=True, squeeze=False)[0]
    for axes, cycle in zip(all_axes, cycles, strict=True):
        items = [item for item in view.periodic if item.cycle == cycle]
        shares = [100 * (item.accuracy or 0.0) for item in items]
        errors = [
            [share - 100 * item.interval[0] for item, share in zip(items, shares, strict=True)],
            [100 * item.interval[1] - share for item, share in zip(items, shares, strict=True)],
        ]
        look: dict[str, Any] = {"color": _SERIES[1], "linewidth": 1.8, "marker": "s", "markersize": 4.5}
        axes.errorbar([item.step or 0 for item in items], shares, errors, elinewidth=1.0, capsize=2, **look)
        axes.set_title(f"r{cycle:04d}", fontsize=10.5, loc="left", color=_INK)
        axes.set_ylim(-3, 103)
        axes.set_xlabel("updates")
        axes.xaxis.get_major_locator().set_params(integer=True)
    all_axes[0].set_ylabel("Val, first answers right, %")
    return _svg(figure, "periodic")


def pass_figure(view: RunView) -> str:
    """pass@k over k, before and after the RL phases (SCHED-09)."""
    if not view.passes:
        return ""
    figure, axes = _canvas(9.6, 3.4)
    looks: dict[str, dict[str, Any]] = {
        "pass_before": {"color": _MUTED, "marker": "o", "linestyle": "--"},
        "pass_after": {"color": _SERIES[0], "marker": "D", "linestyle": "-"},
    }
    ticks = sorted({k for item in view.passes for k, _ in item.values})
    for item in view.passes:
        name = f"{item.kind.removeprefix('pass_')}, {view.model_name(item.model)}"
        values = [100 * value for _, value in item.values]
        axes.plot([k for k, _ in item.values], values, linewidth=2.0, label=name, **looks[item.kind])
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.minorticks_off()
    axes.set_ylim(-3, 103)
    axes.set_xlabel(f"k of {view.passes[0].attempts} sampled attempts, {view.passes[0].tasks} Test tasks")
    axes.set_ylabel("pass@k, %")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return _svg(figure, "pass")


def layers_figure(view: RunView) -> str:
    """How the Test episodes of each boundary ended: stacked shares of the layers, with counts (REP-05)."""
    items = [item for item in view.boundaries if item.layers is not None]
    if not items:
        return ""
    figure, axes = _canvas(9.6, 0.75 + 0.46 * len(items))
    axes.grid(visible=False)
    for row, item in enumerate(items):
        left = 0.0
        for name in LAYERS:
            count = item.layers.count(name) if item.layers else 0
            if not count:
                continue
            width = 100 * count / item.total
            axes.barh(
                row, width, left=left, height=0.7, color=_LAYER_COLOURS[name], edgecolor=_PAPER, linewidth=1.2
            )
            if width > 3:
                axes.text(
                    left + width / 2, row, str(count), ha="center", va="center", color=_PAPER, fontsize=9.5
                )
            left += width
    axes.set_yticks(range(len(items)))
    axes.set_yticklabels([f"{item.phase} {item.label}" for item in items])
    axes.tick_params(axis="y", length=0, labelcolor=_INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"% of the {items[0].total} Test tasks; counts inside the bars")
    handles = [axes.barh(0, 0, color=_LAYER_COLOURS[name]) for name in LAYERS]
    axes.legend(handles, LAYERS, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=len(LAYERS))
    return _svg(figure, "layers")


def families_figure(view: RunView) -> str:
    """Right answers by family at every Test boundary, as a table of shaded cells with counts."""
    items = [item for item in view.boundaries if item.families]
    if not items:
        return ""
    families = sorted({score.family for item in items for score in item.families})
    figure, axes = _canvas(9.6, 1.0 + 0.42 * len(families))
    axes.grid(visible=False)
    for column, item in enumerate(items):
        for score in item.families:
            row, share = families.index(score.family), score.correct / score.total
            axes.bar(column, 0.92, 0.96, row - 0.46, color=_SERIES[0], alpha=0.06 + 0.94 * share, linewidth=0)
            colour = _PAPER if share > 0.5 else _INK
            axes.text(
                column,
                row,
                f"{score.correct}/{score.total}",
                ha="center",
                va="center",
                color=colour,
                fontsize=10,
            )
    axes.set_yticks(range(len(families)))
    axes.set_yticklabels(families)
    axes.set_xticks(range(len(items)))
    axes.set_xticklabels([f"{item.phase}\n{_moment(item)}" for item in items])
    axes.tick_params(axis="both", length=0, labelcolor=_INK)
    axes.xaxis.tick_top()
    axes.set_xlim(-0.5, len(items) - 0.5)
    axes.set_ylim(len(families) - 0.5, -0.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return _svg(figure, "families")


def _moment(item: Measurement) -> str:
    return "start" if item.kind in ("phase_baseline_test", "rl_baseline_test") else "end"


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Figure, name: str) -> str:
    """The drawing as SVG text for HTML: no date, no outside address, no id that two figures could share."""
    buffer = io.StringIO()
    metadata: dict[str, None] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(
        r'<svg([^>]*?)\swidth="[^"]*"', r"<svg\1", re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", text)
    )
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return text


def figures(view: RunView) -> Sequence[tuple[str, str]]:
    """Name and SVG of every figure that the recorded data can fill."""
    drawn: list[tuple[str, str]] = []
    with mpl.rc_context(_STYLE):
        for name, draw in (
            ("accuracy", accuracy_figure),
            ("adaptation", adaptation_figure),
            ("reward", reward_figure),
            ("periodic", periodic_figure),
            ("pass", pass_figure),
            ("layers", layers_figure),
            ("families", families_figure),
        ):
            text = draw(view)
            if text:
                drawn.append((name, text))
    return drawn
