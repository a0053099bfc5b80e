"""The HTML report of a run: one self-contained file without a single outside address.

Owns the page. Everything from a run (program texts, hypotheses, names) is untrusted and escaped by the
template engine; only the figures of `report/figures.py` are inserted as they are, with their text escaped by
matplotlib.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from report.data import ATTEMPTS, KIND_LABELS, LAYER_NOTES, LAYERS, SPLIT_LABELS, RunView
from report.figures import figures
from report.headline import headline
from report.numbers import duration, percent

_CAPTIONS: Final = {
    "accuracy": "First-answer accuracy over the schedule. The line is Test, recorded at stage boundaries and "
    "never used to choose; bars are Wilson 95 % intervals. The points are Val, used for selection, so the "
    "adopted ones look better than they are.",
    "reward": "Mean reward of each RL batch. The training tasks change from update to update, so this is not "
    "an accuracy.",
    "layers": "How the Test episodes ended.",
    "families": "Right answers by family of questions, over that family's Test tasks.",
}


def render(view: RunView) -> str:
    """The page as text; equal views give equal pages."""
    environment = Environment(
        loader=PackageLoader("report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    environment.filters["duration"] = duration
    return environment.get_template("report.html").render(
        view=view,
        headline=headline(view),
        figures=[(name, Markup(svg), _CAPTIONS[name]) for name, svg in figures(view)],
        attempts=ATTEMPTS,
        kinds=KIND_LABELS,
        layers=LAYERS,
        layer_notes=LAYER_NOTES,
        splits=SPLIT_LABELS,
    )


def write(view: RunView, path: Path) -> Path:
    """Write the page whole or not at all, and give back its path. OSError passes through."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".report-", suffix=".html")
    try:
        # A program's text may hold half a surrogate pair, which has no UTF-8 form.
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(render(view))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
