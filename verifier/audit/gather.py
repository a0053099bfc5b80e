"""What the audit remembers of each task: a few numbers and a sketch of hashes, so that a million tasks fit.

Texts are read once, in batches. Must not know files of a release or answers.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from verifier.audit import hashing
from verifier.audit.hashing import Hashes, Owners
from verifier.audit.model import SPLIT_ORDER
from verifier.task import Task

_BATCH_CHARACTERS: Final = 1 << 20
_BATCH_TASKS: Final = 8192
SKETCH: Final = 2_000_000
"""Hashes that a sketch keeps at most."""


class Sketch:
    """(hash, task) pairs. When they are too many only the smallest half of all hash values stays, again and
    again: the same hashes for every task, so what tasks share stays comparable."""

    def __init__(self, limit: int = SKETCH) -> None:
        self.scale = 1
        """One in `scale` hashes is kept."""
        self._limit = limit
        self._parts: list[tuple[Hashes, Owners]] = []
        self._kept = 0

    def add(self, hashes: Hashes, owners: Owners) -> None:
        self._take(hashes, owners)
        while self._kept > self._limit:
            self.scale *= 2
            parts, self._parts, self._kept = self._parts, [], 0
            for part in parts:
                self._take(*part)

    def sorted(self) -> tuple[Hashes, Owners]:
        """All pairs by hash, then task, each once. The sketch is empty afterwards."""
        if not self._parts:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint32)
        hashes = np.concatenate([part[0] for part in self._parts])
        owners = np.concatenate([part[1] for part in self._parts])
        self._parts, self._kept = [], 0
        # Tasks came in rising order, so a stable sort leaves them rising within a hash.
        order = np.argsort(hashes, kind="stable")
        hashes, owners = hashes[order], owners[order]
        new = np.ones(len(hashes), np.bool_)
        new[1:] = (hashes[1:] != hashes[:-1]) | (owners[1:] != owners[:-1])
        return hashes[new], owners[new]

    def _take(self, hashes: Hashes, owners: Owners) -> None:
        if self.scale > 1:
            low = hashes < np.uint64((1 << 64) // self.scale)
            hashes, owners = hashes[low], owners[low]
        if len(hashes):
            self._parts.append((hashes, owners))
            self._kept += len(hashes)


@dataclass(frozen=True)
class Gathered:
    """All tasks as arrays; a task is its position."""

    ids: "Ids"
    splits: NDArray[np.uint8]
    """Position in SPLIT_ORDER."""
    subtopics: NDArray[np.uint16]
    """Position in `subtopic_names`."""
    subtopic_names: tuple[tuple[str, str], ...]
    """Family and subtopic."""
    groups: Hashes
    questions: Hashes
    """The question's words, the listed options aside."""
    options: Hashes
    """The options as a set; 0 for a task without any."""
    shingles: Sketch
    names: Sketch
    cut: int
    """Questions that were longer than what is read of one."""


class Ids:
    """Task ids in one block of bytes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ends = array("Q")

    def append(self, task_id: str) -> None:
        self._data += task_id.encode(errors="replace")
        self._ends.append(len(self._data))

    def __getitem__(self, index: int) -> str:
        start = self._ends[index - 1] if index else 0
        return self._data[start : self._ends[index]].decode()

    def __len__(self) -> int:
        return len(self._ends)


class Gatherer:
    """Takes tasks one by one."""

    def __init__(self) -> None:
        self._ids = Ids()
        self._splits, self._subtopics = array("B"), array("H")
        self._names: dict[tuple[str, str], int] = {}
        self._hashes: dict[str, list[Hashes]] = {"groups": [], "questions": [], "options": []}
        self._shingles, self._entities = Sketch(), Sketch()
        self._cut = 0
        self._clear()

    def add(self, task: Task, question: str) -> None:
        """Remember one task; `question` is its prompt without the listed options."""
        self._ids.append(task.id)
        self._splits.append(SPLIT_ORDER.index(task.split))
        self._subtopics.append(self._names.setdefault((task.family, task.subtopic), len(self._names)))
        self._cut += len(question) > hashing.LONGEST_TEXT
        self._questions.append(question)
        self._groups.append(task.material_group)
        self._options.append(_as_set(task.options))
        self._characters += len(question)
        if self._characters > _BATCH_CHARACTERS or len(self._groups) >= _BATCH_TASKS:
            self._flush()

    def finish(self) -> Gathered:
        """Everything that was taken."""
        self._flush()
        joined = {
            name: np.concatenate(parts) if parts else np.zeros(0, np.uint64)
            for name, parts in self._hashes.items()
        }
        return Gathered(
            ids=self._ids,
            splits=np.frombuffer(self._splits, np.uint8),
            subtopics=np.frombuffer(self._subtopics, np.uint16),
            subtopic_names=tuple(self._names),
            shingles=self._shingles,
            names=self._entities,
            cut=self._cut,
            **joined,
        )

    def _clear(self) -> None:
        self._questions: list[str] = []
        self._groups: list[str] = []
        self._options: list[str] = []
        self._characters = 0

    def _flush(self) -> None:
        if not self._groups:
            return
        base = np.uint32(len(self._ids) - len(self._groups))
        found = hashing.words(self._questions)
        self._hashes["questions"].append(hashing.sequences(found))
        self._hashes["groups"].append(hashing.strings(self._groups))
        self._hashes["options"].append(hashing.strings(self._options))
        for sketch, (hashes, owners) in (
            (self._shingles, hashing.shingles(found)),
            (self._entities, hashing.names(found)),
        ):
            sketch.add(hashes, owners + base)
        self._clear()


def _as_set(options: Sequence[str]) -> str:
    """The options in an order of their own, case and white space folded."""
    if not options:
        return ""
    folded = " ".join("\x00".join(options).casefold().split())
    return "\x00".join(sorted(folded.split("\x00")))


def question_of(task: Task) -> str:
    """The prompt without the options that it lists and what follows them."""
    if not task.options:
        return task.prompt
    place = task.prompt.rfind(task.options[0])
    return task.prompt[:place] if place > 0 else task.prompt
