"""The audit of a release in the terminal: what to look at, then the tables behind it (DATA-05).

Must not know releases or files; it shows what `verifier/audit` measured.
"""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verifier.audit.flags import RULES
from verifier.audit.model import Audit, Pairs, Shared

_LEVELS: Final = {"warning": "bold yellow", "note": "dim"}


def show_audit(name: str, audit: Audit, console: Console) -> None:
    """Print the whole audit."""
    _say(console, f"audit of {name}: {audit.tasks} tasks, {len(audit.warnings)} warnings")
    for flag in audit.flags:
        _say(console, f"{flag.level}: {flag.text}", _LEVELS[flag.level])
    for table in (_baselines(audit), _balance(audit), _overlap(audit), _answers(audit)):
        if table is not None:
            console.print(table)
    for limit in audit.limits:
        _say(console, f"limit: {limit}", "dim")


def _baselines(audit: Audit) -> Table | None:
    """A row for each rule, a column for each split."""
    splits = [split for split in audit.baselines if split.baselines]
    if not splits:
        return None
    heads = [f"{split.split} ({split.with_options} of {split.tasks})" for split in splits]
    table = _table("Right without any knowledge: of the tasks with options / of all", ["rule"], heads)
    for rule, said in RULES.items():
        cells: list[Text] = []
        for split in splits:
            item = next((item for item in split.baselines if item.rule == rule), None)
            shown = "" if item is None else f"{item.within:.1%} / {item.whole:.1%}"
            cells.append(Text(shown, "bold yellow" if item is not None and item.flagged else ""))
        table.add_row(said, *cells)
    return table


def _balance(audit: Audit) -> Table:
    table = _table("Tasks by subtopic", ["family", "subtopic"], ["train", "val", "test"])
    for row in audit.balance.counts:
        table.add_row(row.family, row.subtopic, str(row.train), str(row.val), str(row.test))
    apart = [f"{item.one}-{item.other} {item.subtopics:.2f}" for item in audit.balance.distances]
    stratified = "stratified by subtopic" if audit.balance.stratified else "not stratified by subtopic"
    table.caption = f"{stratified}; distance of the splits' subtopics, 0 to 1: {', '.join(apart) or 'none'}"
    return table


def _overlap(audit: Audit) -> Table | None:
    overlap = audit.overlap
    table = _table("Shared between splits", ["what", "splits"], ["number", "tasks", "undeclared"])
    kinds: Sequence[tuple[str, Sequence[Pairs | Shared]]] = (
        ("declared group", overlap.groups),
        ("passage (pairs)", overlap.passages),
        ("rare name", overlap.entities),
        ("equal task (pairs)", audit.duplicates.same),
    )
    for what, items in kinds:
        for item in items:
            number = item.pairs if isinstance(item, Pairs) else item.count
            undeclared = str(item.undeclared) if isinstance(item, Pairs) else ""
            table.add_row(what, f"{item.one}-{item.other}", str(number), str(item.tasks), undeclared)
    return table if table.row_count else None


def _answers(audit: Audit) -> Table | None:
    if audit.answerability is None:
        return None
    table = _table("Answers in the lake", ["family", "subtopic"], ["tasks", "determined", "mentioned"])
    table.add_column("files", overflow="fold")
    for item in audit.answerability.subtopics:
        files = ", ".join(f"{held.file} {held.determines}+{held.mentions}" for held in item.files[:4])
        shown = Text("guess only", "bold yellow") if item.guess_only else Text(files)
        table.add_row(
            item.family, item.subtopic, str(item.tasks), str(item.determined), str(item.mentioned), shown
        )
    table.caption = (
        "determined: a row has the right answer beside a name from the question, and no wrong option; "
        "mentioned: both in one file otherwise"
    )
    return table


def _table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style), soft_wrap=True, highlight=False)
