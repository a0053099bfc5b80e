"""Reward curves as a PNG in the look of the report's figures. Must not know how they were measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.soak.curves import PhaseResult

_INK, _MUTED, _RULE, _PAPER = "#1d232b", "#66707d", "#e1e4e8", "#fdfdfb"
_SERIES: Final = ("#0b6bb8", "#d1660a", "#0a8a63", "#b0508f", "#87909b", "#8a6d00")
_LINES: Final = ("-", "--", "-.", ":")
"""Beside the colours, so that no curve speaks by colour alone."""
_STYLE: Final[dict[str, Any]] = {
    "font.size": 10.5,
    "text.color": _INK,
    "axes.labelcolor": _MUTED,
    "axes.edgecolor": _RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _RULE,
    "xtick.color": _RULE,
    "xtick.labelcolor": _INK,
    "ytick.color": _RULE,
    "ytick.labelcolor": _MUTED,
    "figure.facecolor": _PAPER,
    "axes.facecolor": _PAPER,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


def draw(results: Sequence[PhaseResult], path: Path) -> None:
    """One panel for the phases, one for the controls, on one scale; Test counts in the legends."""
    panels = [
        (title, [result for result in results if result.shuffled is shuffled])
        for title, shuffled in (("true references", False), ("permuted references (control)", True))
    ]
    panels = [(title, own) for title, own in panels if own]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.9 * len(panels), 3.9), layout="constrained")
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, own) in zip(all_axes, panels, strict=True):
            for place, result in enumerate(own):
                axes.plot(
                    range(1, len(result.rewards) + 1),
                    result.rewards,
                    color=_SERIES[place % len(_SERIES)],
                    linestyle=_LINES[place % len(_LINES)],
                    marker="o",
                    markersize=3.5,
                    linewidth=1.8,
                    label=_label(result),
                )
            axes.set_title(title, fontsize=10.5, loc="left")
            axes.set_xlabel("update")
            axes.set_ylim(-0.03, 1.03)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        all_axes[0].set_ylabel("mean training reward")
        figure.savefig(path, dpi=150)


def _label(result: PhaseResult) -> str:
    change = result.change()
    return (
        f"seed {result.seed}: Test {change.before} to {change.after} of {change.total}, "
        f"p = {change.p_value:.1g}"
    )
