"""What a candidate changes for the model, as a dry run showed it: the change report of T02.

Must not decide anything; it is for readers.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from harness_lab.dryrun import DryRun
from harness_lab.folding import folded_texts
from harness_lab.syntax import ProgramSyntaxError, documentation, parse

_MOST_LINES, _LONGEST_LINE = 60, 400
_SHORTEST = 4
"""Characters: shorter constants are roles and marks, and stand in every text."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NewText(_Frozen):
    """A text of the candidate's code that the parent's code does not have."""

    line: int
    text: str
    reaches_model: bool
    """It stood, as it is, in what the model received."""


class Change(_Frozen):
    """The candidate against its parent, under the same scripts on the same tasks."""

    unchanged: bool
    new_lines: tuple[str, ...]
    """Lines that reach the model and did not before."""
    lost_lines: tuple[str, ...]
    texts: tuple[NewText, ...]
    calls: dict[str, tuple[int, int]]
    """Calls of each kind over all scripted episodes: the parent's, the candidate's."""
    first_difference: str
    cut: str
    """Why the dry run is not complete, or nothing."""


def change_report(
    code: str, parent_code: str, parent: DryRun, candidate: DryRun, *, unchanged: bool
) -> Change:
    """Compare two dry runs of the same scripts and tasks."""
    before, after = _lines(parent.sent_text), _lines(candidate.sent_text)
    return Change(
        unchanged=unchanged,
        new_lines=_shown(line for line in after if line not in before),
        lost_lines=_shown(line for line in before if line not in after),
        texts=_new_texts(code, parent_code, "\n".join(candidate.sent_text)),
        calls=_calls(parent, candidate),
        first_difference=_first_difference(parent, candidate),
        cut=candidate.cut or parent.cut,
    )


def _lines(texts: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(line for text in texts for line in text.splitlines() if line.strip())


def _shown(lines: Iterable[str]) -> tuple[str, ...]:
    kept = [line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…" for line in lines]
    more = len(kept) - _MOST_LINES
    return tuple(kept[:_MOST_LINES]) + ((f"… and {more} more lines",) if more > 0 else ())


def _new_texts(code: str, parent_code: str, sent: str) -> tuple[NewText, ...]:
    had = _texts(parent_code)
    found = {text: line for text, line in _texts(code).items() if text not in had}
    return tuple(
        NewText(line=line, text=text[:_LONGEST_LINE], reaches_model=text.strip() in sent)
        for text, line in sorted(found.items(), key=lambda item: item[1])
    )[:_MOST_LINES]


def _texts(code: str) -> dict[str, int]:
    """Text constants of a program and their lines, documentation left out."""
    try:
        tree = parse(code)
    except ProgramSyntaxError:
        return {}
    apart = set(documentation(tree).values())
    pieces = {
        node.value: node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    texts = {**folded_texts(tree), **pieces}
    return {
        text: line for text, line in texts.items() if len(text.strip()) >= _SHORTEST and text not in apart
    }


def _calls(parent: DryRun, candidate: DryRun) -> dict[str, tuple[int, int]]:
    counts = [Counter(event["op"] for event in run.events) for run in (parent, candidate)]
    return {name: (counts[0][name], counts[1][name]) for name in ("generate", "execute", "submit", "error")}


def _first_difference(parent: DryRun, candidate: DryRun) -> str:
    before, after = _episodes(parent), _episodes(candidate)
    for number, (one, other) in enumerate(zip(before, after, strict=False)):
        for place in range(max(len(one), len(other))):
            left = one[place] if place < len(one) else {"op": "nothing"}
            right = other[place] if place < len(other) else {"op": "nothing"}
            if left != right:
                what = left["op"] if left["op"] == right["op"] else f"{left['op']} became {right['op']}"
                return f"scripted episode {number + 1}, event {place + 1}: {what}"
    return ""


def _episodes(run: DryRun) -> Sequence[list[dict[str, object]]]:
    found: list[list[dict[str, object]]] = [[]]
    for event in run.events:
        if event["op"] == "next":
            found.append([])
        else:
            found[-1].append(event)
    return found
