"""Which lake file holds the answers of which subtopic: right answer and a name from the question in one row.

A search for names in the lake's text, so it sees what is looked up and not what is computed. Answers come in
as plain text and only counts go out; the checker lives as long as the audit. Must not know lakes' makers.
"""

import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from verifier.audit.model import Answerability, FileHolds, SubtopicAnswers
from verifier.audit.rows import Row, rows_of
from verifier.task import Split, Task

SAMPLE: Final = 10_000
"""Tasks that are checked at most; which ones, the hash of the id decides."""
LISTED: Final = 200
_QUESTION: Final = 4_000
"""Characters of a question that are searched for names."""
_FREQUENT: Final = 0.25
"""A name in more than this share of a subtopic's questions (and ten) is wording."""
_ROWS: Final = 5_000
"""Rows of a file that are remembered of one term; a more frequent one tells nothing."""

_LABELS: Final = 200_000
_HALF: Final = 0.5
"""Tasks of a subtopic that files must at least mention, where none determines an answer."""

_TERM: Final = re.compile(r"\w+(?:[.\-]\w+)*")
_SHAPED: Final = re.compile(r"(?=.*[^\W_])(?:.*[\d_].*|.+[A-Z].*)", re.DOTALL)


@dataclass(frozen=True, slots=True, repr=False)
class _Checked:
    """A task with its answer, for the time of the audit only."""

    task: str
    split: Split
    subtopic: tuple[str, str]
    question: str
    names: frozenset[str]
    right: frozenset[str]
    wrong: tuple[frozenset[str], ...]


@dataclass
class _Found:
    """Rows of one file by term, and by label under the label's first word."""

    rows: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    labels: dict[str, dict[str, set[int]]] = field(default_factory=lambda: defaultdict(dict))
    kept: int = 0

    def label(self, label: str, number: int) -> None:
        """Remember a row's label, as far as there is room."""
        if self.kept < _LABELS:
            self.kept += 1
            self.labels[label.partition(" ")[0]].setdefault(label, set()).add(number)

    def labelled(self, question: str) -> list[set[int]]:
        """Rows of every label that the question repeats word by word."""
        padded = f"{question} "
        return [
            rows
            for word in set(question.split())
            for label, rows in self.labels.get(word, {}).items()
            if f"{label} " in padded
            or f"{label}." in padded
            or f"{label}," in padded
            or f"{label}?" in padded
        ]


class Answers:
    """Takes tasks with their answers one by one, then reads the lake once."""

    def __init__(self, limit: int = SAMPLE) -> None:
        self._limit = limit
        self._threshold = 1 << 32
        self._tasks: list[tuple[int, _Checked]] = []
        self.seen = 0

    def add(self, task: Task, question: str, right: int | None, answer: str) -> None:
        """`right` is the position of the right option, for a task with options."""
        self.seen += 1
        key = zlib.crc32(task.id.encode(errors="replace"))
        if key >= self._threshold:
            return
        self._tasks.append((key, _checked(task, question, right, answer)))
        if len(self._tasks) > self._limit:
            self._threshold //= 2
            self._tasks = [item for item in self._tasks if item[0] < self._threshold]

    def finish(self, lake: Path) -> tuple[Answerability, tuple[str, ...]]:
        """Read the lake and count; and in words what was left out."""
        tasks = _without_wording([item[1] for item in self._tasks])
        terms = {term for task in tasks for part in (task.right, *task.wrong, task.names) for term in part}
        held: dict[str, dict[str, bool]] = {task.task: {} for task in tasks}
        skipped: list[str] = []
        read = 0
        for path in sorted(item for item in lake.rglob("*") if item.is_file() and not item.is_symlink()):
            name = path.relative_to(lake).as_posix()
            source = rows_of(path)
            found = _search(source.rows, terms)
            if source.problem:
                skipped.append(f"{name}: {source.problem}")
            if not source.nothing_read:
                read += 1
                for task in tasks:
                    if (how := _holds(task, found)) is not None:
                        held[task.task][name] = how
        limits = (
            (f"answerability: {len(tasks)} of {self.seen} tasks were checked",)
            if len(tasks) < self.seen
            else ()
        )
        return _summary(tasks, held, read, skipped), limits


def _checked(task: Task, question: str, right: int | None, answer: str) -> _Checked:
    text = question[-_QUESTION:]
    wrong: Sequence[str] = ()
    if right is not None and right < len(task.options):
        answer = task.options[right]
        wrong = [option for index, option in enumerate(task.options) if index != right]
    elif not task.options and answer:
        wrong = _candidates(text, answer)
    right_terms = _terms(answer)
    apart = right_terms | {term for item in wrong for term in _terms(item)}
    return _Checked(
        task=task.id,
        split=task.split,
        subtopic=(task.family, task.subtopic),
        question=" ".join(text.casefold().split()),
        names=frozenset(_names(text)) - apart,
        right=right_terms,
        wrong=tuple(_terms(item) for item in wrong),
    )


def _candidates(question: str, answer: str) -> list[str]:
    """When the question lists the answer among candidates, the others of that line."""
    wanted = answer.strip().casefold()
    for line in question.splitlines():
        found = _TERM.findall(line)
        if len(found) > 2 and any(term.casefold() == wanted for term in found):
            return [term for term in found if _SHAPED.fullmatch(term) and term.casefold() != wanted]
    return []


def _names(text: str) -> Iterator[str]:
    shaped = [term for term in _TERM.findall(text) if _SHAPED.fullmatch(term)]
    long = [term for term in shaped if len(term) >= 4]
    yield from (term.casefold() for term in long or [term for term in shaped if len(term) == 3])


def _terms(text: str) -> frozenset[str]:
    return frozenset(term.casefold() for term in _TERM.findall(text))


def _without_wording(tasks: Sequence[_Checked]) -> list[_Checked]:
    """The tasks without names that a good part of their subtopic's questions has."""
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    uses: dict[tuple[tuple[str, str], str], int] = defaultdict(int)
    for task in tasks:
        sizes[task.subtopic] += 1
        for name in task.names:
            uses[task.subtopic, name] += 1

    def told(task: _Checked) -> frozenset[str]:
        most = max(10.0, _FREQUENT * sizes[task.subtopic])
        return frozenset(name for name in task.names if uses[task.subtopic, name] <= most)

    return [
        _Checked(task.task, task.split, task.subtopic, task.question, told(task), task.right, task.wrong)
        for task in tasks
    ]


def _search(rows: Iterator[Row], terms: Collection[str]) -> _Found:
    found = _Found()
    for number, row in enumerate(rows):
        for term in {item.casefold() for item in _TERM.findall(row.text)}:
            if term in terms and len(found.rows[term]) < _ROWS:
                found.rows[term].add(number)
        if row.label:
            found.label(row.label, number)
    return found


def _holds(task: _Checked, found: _Found) -> bool | None:
    """True: the file determines the answer; False: it mentions it; None: it does not hold it."""
    right = _rows_with(task.right, found)
    if not right:
        return None
    wrong: set[int] = set()
    for option in task.wrong:
        wrong |= _rows_with(option, found)
    beside = [found.rows[name] for name in task.names if name in found.rows]
    beside += found.labelled(task.question)
    if any(rows & right and not rows & wrong for rows in beside):
        return True
    return False if beside else None


def _rows_with(terms: frozenset[str], found: _Found) -> set[int]:
    common: set[int] | None = None
    for term in terms:
        rows = found.rows.get(term, set[int]())
        common = rows if common is None else common & rows
    return common or set()


def _summary(
    tasks: Sequence[_Checked], held: Mapping[str, Mapping[str, bool]], read: int, skipped: Sequence[str]
) -> Answerability:
    by_subtopic: dict[tuple[str, str], list[_Checked]] = defaultdict(list)
    for task in tasks:
        by_subtopic[task.subtopic].append(task)
    subtopics = tuple(
        _subtopic(name, [held[task.task] for task in by_subtopic[name]]) for name in sorted(by_subtopic)
    )
    answered = {
        (item.family, item.subtopic)
        for item in subtopics
        if item.determined + item.mentioned >= _HALF * item.tasks
    }
    lost = [task for task in tasks if not held[task.task] and task.subtopic in answered]
    return Answerability(
        subtopics=subtopics,
        unanswerable=tuple(sorted(task.task for task in lost if task.split == "train")[:LISTED]),
        unanswerable_total=len(lost),
        files_read=read,
        files_skipped=tuple(skipped),
    )


def _subtopic(name: tuple[str, str], held: Sequence[Mapping[str, bool]]) -> SubtopicAnswers:
    determines: dict[str, int] = defaultdict(int)
    mentions: dict[str, int] = defaultdict(int)
    for files in held:
        for file, sure in files.items():
            (determines if sure else mentions)[file] += 1
    files = [
        FileHolds(file=file, determines=determines[file], mentions=mentions[file])
        for file in sorted({*determines, *mentions})
    ]
    determined = sum(any(files.values()) for files in held)
    mentioned = sum(bool(files) and not any(files.values()) for files in held)
    return SubtopicAnswers(
        family=name[0],
        subtopic=name[1],
        tasks=len(held),
        determined=determined,
        mentioned=mentioned,
        files=tuple(sorted(files, key=lambda item: (-item.determines, -item.mentions, item.file))),
        guess_only=not determined and mentioned < _HALF * len(held),
    )
