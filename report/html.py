"""The HTML report of a run: one self-contained file without a single outside address.

Owns the page. Everything from a run (program texts, hypotheses, names) is untrusted and escaped by the
template engine; only the figures of `report/figures.py` are inserted as they are, with their text escaped by
matplotlib.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

from markupsafe import Markup

from report.changes import count
from report.data import (
    ATTEMPTS,
    KIND_LABELS,
    LAYER_NOTES,
    LAYERS,
    SPLIT_LABELS,
    STEPS,
    Decision,
    RunView,
)
from report.figures import figures
from report.headline import headline
from report.pages import environment
from report.step_view import StepView

_CAPTIONS: Final = {
    "accuracy": "First-answer accuracy over the schedule. The line is Test, recorded at stage boundaries and "
    "never used to choose; bars are Wilson 95 % intervals.",
    "adaptation": "Batch accuracy: first answers right in each batch of Train conversations (changing "
    "samples, so two batches are not the same exam), and the best so far. The program with the largest "
    "share over the batches that it ran is the one that Val compares with the initial one.",
    "reward": "Mean reward of each RL batch. The training tasks change from update to update, so this is not "
    "an accuracy.",
    "periodic": "Val between the updates of each RL phase: first answers, 1 attempt a task, with Wilson 95 % "
    "intervals. It chose nothing here; whoever picks an update by it must believe Test instead.",
    "pass": "pass@k: the chance that k sampled attempts hold a right one, the mean over the Test tasks. It "
    "is another number than accuracy, which is one attempt at temperature 0.",
    "layers": "How the Test episodes ended.",
    "families": "Right answers by family of questions, over that family's Test tasks.",
}


_VAL_POINTS: Final = " The points are Val, used for selection, so the adopted ones look better than they are."
_TEXTS_SHOWN: Final = 3
"""Texts of a dry run that stand open on a step's page; the others are folded."""


def render(view: RunView) -> str:
    """The page as text; equal views give equal pages."""
    return (
        environment()
        .get_template("report.html")
        .render(
            view=view,
            headline=headline(view),
            figures=[(name, Markup(svg), _caption(name, view)) for name, svg in figures(view)],
            attempts=ATTEMPTS,
            kinds=KIND_LABELS,
            layers=LAYERS,
            layer_notes=LAYER_NOTES,
            splits=SPLIT_LABELS,
            steps_folder=STEPS,
            spurious=view.spurious(),
        )
    )


def _caption(name: str, view: RunView) -> str:
    return _CAPTIONS[name] + (_VAL_POINTS if name == "accuracy" and view.selections else "")


def render_step(view: RunView, decision: Decision, step: StepView) -> str:
    """The page of one step: its decision, and a card for each candidate."""
    compared = [item for item in decision.candidates if item.correct is not None]
    cards = [(item, step.card(item.index)) for item in compared]
    spending = [("Parent", step.parent_spent), *((f"Candidate {i.index}", c.spent) for i, c in cards if c)]
    return (
        environment()
        .get_template("step.html")
        .render(
            view=view,
            decision=decision,
            step=step,
            compared=compared,
            best=decision.winner or max(compared, key=lambda item: item.correct or 0, default=None),
            spending=[(name, spent) for name, spent in spending if spent is not None],
            so_far=view.spurious(decision),
            count=count,
            attempts=ATTEMPTS,
            shown=_TEXTS_SHOWN,
        )
    )


def write_steps(view: RunView, folder: Path) -> list[Path]:
    """Write a page for each step of which anything is recorded, and give back their paths."""
    found = [(decision, view.step(decision)) for decision in view.decisions]
    return [
        _write(render_step(view, decision, step), folder / f"{decision.name}.html")
        for decision, step in found
        if step is not None
    ]


def write(view: RunView, path: Path) -> Path:
    """Write the page whole or not at all, and give back its path. OSError passes through."""
    return _write(render(view), path)


def _write(text: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".report-", suffix=".html")
    try:
        # A program's text may hold half a surrogate pair, which has no UTF-8 form.
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
