"""What every importer gives: rows of a source as questions and private references, or the row's problem.

An importer reads and translates; it decides nothing about splits, and drops nothing by itself. A row's
problem ends the import unless its kind was allowed; then it is written into the release (DATA-02).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol

import orjson

from catalog.digest import digest_bytes
from verifier.answers import LETTERS, answer_form
from verifier.layout import ReleaseError
from verifier.task import AnswerFormat, Question, Split

Kind = Literal[
    "duplicate-id",
    "duplicate-options",
    "label-outside-candidates",
    "malformed-row",
    "missing-canary",
    "unsupported-task",
]
"""Kinds of problems of a row; `--drop KIND` allows one."""

MAX_ROW_BYTES: Final = 8 << 20
"""A longer line of a text source is refused: it is no question."""


@dataclass(frozen=True)
class Row:
    """One task as a source states it."""

    question: Question
    reference: Mapping[str, Any]
    """Private: the fields of a reference, without `task` and `canary` (see `verifier/references.py`)."""
    where: str
    """File and row, e.g. `DbQA/x.jsonl row 3`."""
    split: Split | None = None
    """The source's own split, where it has one."""
    assets: Mapping[str, Path | bytes] = field(default_factory=dict[str, Path | bytes])
    """Public files of the task by base name; `question.files` lists them."""
    private_files: Mapping[str, Path | bytes] = field(default_factory=dict[str, Path | bytes])
    """Files for the grader alone by plain path, e.g. a task's test script."""


@dataclass(frozen=True)
class Problem:
    """A row that cannot become a task."""

    kind: Kind
    where: str
    why: str
    """What is wrong and, where there is one, the fix. Never holds an answer."""


class Importer(Protocol):
    """A source folder or file, opened for one import."""

    name: ClassVar[str]
    """As `rinr release import NAME` says it."""
    version: ClassVar[int]
    """Raised whenever an equal source gives other tasks."""
    licence: str
    """SPDX expression of the source."""
    origin: str
    """One line for the release's `sources`."""
    notes: Sequence[str]
    """Lines for the release's notes."""
    no_training: bool
    """The source asks not to enter training corpora."""
    root: Path
    """Folder that the names of `files` are relative to."""

    def files(self) -> Sequence[Path]:
        """Every source file it reads, sorted; each is pinned by its digest."""
        ...

    def rows(self) -> Iterator[Row | Problem]:
        """The rows in the source's order, never all in memory. ReleaseError for a file of another kind."""
        ...


def letter_options(right: str, wrong: Sequence[str], key: str) -> tuple[tuple[str, ...], str]:
    """Options in an order that only their texts and `key` decide, and the letter of the right one.

    The order is by digest, so that it tells nothing and is equal on every machine. ValueError, naming no
    answer, when two options have the same text or there are too many for the letters.
    """
    if 1 + len(wrong) > len(LETTERS):
        raise ValueError(f"{1 + len(wrong)} options, at most {len(LETTERS)}")
    if len({" ".join(option.casefold().split()) for option in (right, *wrong)}) != 1 + len(wrong):
        raise ValueError("two options have the same text")
    ordered = sorted((right, *wrong), key=lambda option: digest_bytes(orjson.dumps([key, option])))
    return tuple(ordered), LETTERS[ordered.index(right)]


def compose_prompt(question: str, options: Sequence[str], answer_format: AnswerFormat) -> str:
    """The prompt: the question, one line an option, and the form of the answer."""
    listed = [f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)]
    return "\n".join([question.strip(), *listed, f"Answer with {answer_form(answer_format)}."])


def unknown_fields(found: Sequence[str], known: Sequence[str], where: str) -> None:
    """ReleaseError for a column or field that the importer does not know, naming what it knows."""
    extra = sorted(set(found) - set(known))
    if extra:
        raise ReleaseError(f"{where}: unknown field {extra[0]!r}; known are {', '.join(sorted(known))}")
