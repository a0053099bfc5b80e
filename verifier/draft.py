"""A release in the making: tasks gathered from sources, before splits are fixed and everything is frozen.

A draft is a folder: `draft.json`, `tasks.jsonl` (questions without a split), `splits.jsonl` (id and split),
`private/references.jsonl`, `private/files/<task id>/...`, `public/assets/<task id>/...`, `lake/...`. Imports
append; `verifier/split.py` writes the splits; `verifier/freeze.py` makes the release. Only ids are held in
memory. It writes references and never reads them.
"""

import hashlib
import os
import shutil
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from catalog.digest import canonical_json, digest_file
from verifier.importers.base import Importer, Kind, Problem, Row
from verifier.layout import Dropped, Import, Payload, ReleaseError, describe, is_plain
from verifier.task import Question, Split, Task

HEADER: Final = "draft.json"
TASKS: Final = "tasks.jsonl"
SPLITS: Final = "splits.jsonl"
REFERENCES: Final = "private/references.jsonl"
PRIVATE_FILES: Final = "private/files"
ASSETS: Final = "public/assets"
LAKE: Final = "lake"


class DraftHeader(BaseModel):
    """`draft.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["rinr-draft"] = "rinr-draft"
    version: Literal[1] = 1
    licences: tuple[str, ...] = ()
    """SPDX expressions of the sources, each once, in order of import."""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    no_training: bool = False
    families: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Subtopics by family, as they were imported."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Tasks by `family/subtopic`."""
    imports: tuple[Import, ...] = ()
    in_order: bool = True
    """Tasks and references stand in order of id, so that freezing reads each file once."""
    split_rule: str = ""
    left_out: int = 0
    """Tasks that the split deliberately left without one."""
    lake_descriptions: dict[str, str] = Field(default_factory=dict)


class Draft:
    """A draft folder. One writer at a time."""

    def __init__(self, root: Path) -> None:
        """Open an existing draft. Raises ReleaseError when there is none."""
        self.root = root
        self.header = read_header(root)

    @classmethod
    def create(cls, root: Path) -> "Draft":
        """A new draft, or the one that is there. ReleaseError for any other folder that is not empty."""
        if not (root / HEADER).is_file():
            if root.exists() and (not root.is_dir() or any(root.iterdir())):
                raise ReleaseError(f"{root} exists and is not a draft: name an empty or a new folder")
            root.mkdir(parents=True, exist_ok=True)
            for name in (REFERENCES, TASKS, SPLITS):
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).touch()
            _write_header(root, DraftHeader())
        return cls(root)

    def add(self, importer: Importer, allow: Collection[Kind] = ()) -> Import:
        """Append everything the importer reads; problems of the allowed kinds are left out and recorded.

        All or nothing: at any other problem the draft is as before. Raises ReleaseError naming file and row.
        """
        with self._appending() as writer:
            dropped: list[Dropped] = []
            rows = 0
            for row in importer.rows():
                rows += 1
                problem = row if isinstance(row, Problem) else writer.problem(row)
                if problem is None and isinstance(row, Row):
                    writer.write(row)
                elif problem is not None and problem.kind in allow:
                    dropped.append(Dropped(kind=problem.kind, where=problem.where, why=problem.why))
                elif problem is not None:
                    raise ReleaseError(
                        f"{problem.where}: {problem.why} (--drop {problem.kind} leaves such rows out)"
                    )
            record = Import(
                importer=importer.name,
                version=importer.version,
                files={_inside(importer.root, path): _pin(path) for path in importer.files()},
                rows=rows,
                tasks=writer.tasks,
                dropped=tuple(dropped),
                fingerprint=writer.fingerprint(),
            )
            self._extend_header(importer, record, writer)
        return record

    def fill(self, tasks: Iterable[Task], references: Mapping[str, Mapping[str, Any]]) -> None:
        """Append tasks that are in memory, with their splits; freezing finds what does not fit."""
        with self._appending() as writer:
            for task in tasks:
                question = Question.model_validate(task.model_dump(exclude={"split"}))
                writer.write_question(question, task.split)
            for task_id, fields in references.items():
                writer.write_reference(task_id, fields)
            self._set_header(in_order=self.header.in_order and writer.in_order)

    def declare(
        self, *, sources: Sequence[str], notes: Sequence[str], lake_descriptions: Mapping[str, str]
    ) -> None:
        """Add lines on where the content comes from, notes, and descriptions by path inside the lake."""
        self._set_header(
            sources=_appended(self.header.sources, *sources),
            notes=_appended(self.header.notes, *notes),
            lake_descriptions={**self.header.lake_descriptions, **lake_descriptions},
        )

    def questions(self) -> Iterator[Question]:
        """The questions in order of import."""
        with (self.root / TASKS).open("rb") as handle:
            for line in handle:
                yield Question.model_validate_json(line)

    def splits(self) -> dict[str, Split]:
        """Split by task id, for the tasks that have one."""
        return {row[0]: row[1] for row in _rows(self.root / SPLITS)}

    def set_splits(self, splits: Mapping[str, Split], rule: str, *, left_out: int = 0) -> None:
        """Replace all splits; `rule` says in words how they were made.

        `left_out` are the tasks that have no split on purpose: freezing leaves just so many out.
        """
        work = self.root / f".{SPLITS}.new"
        with work.open("wb") as handle:
            handle.writelines(orjson.dumps(pair) + b"\n" for pair in splits.items())
        work.replace(self.root / SPLITS)
        self._set_header(split_rule=rule, left_out=left_out)

    def task_ids(self) -> set[str]:
        """Ids of all tasks, read from the questions."""
        return {question.id for question in self.questions()}

    def _set_header(self, **changes: Any) -> None:
        self.header = self.header.model_copy(update=changes)
        _write_header(self.root, self.header)

    def _extend_header(self, importer: Importer, record: Import, writer: "_Writer") -> None:
        header, counts = self.header, writer.counts
        families = {family: list(subtopics) for family, subtopics in header.families.items()}
        for name in counts:
            family, subtopic = name.split("/", 1)
            if subtopic not in families.setdefault(family, []):
                families[family].append(subtopic)
        self._set_header(
            licences=_appended(header.licences, importer.licence),
            sources=_appended(header.sources, importer.origin),
            notes=_appended(header.notes, *importer.notes),
            no_training=header.no_training or importer.no_training,
            families={family: tuple(subtopics) for family, subtopics in families.items()},
            counts={
                name: header.counts.get(name, 0) + counts.get(name, 0)
                for name in dict.fromkeys((*header.counts, *counts))
            },
            imports=(*header.imports, record),
            in_order=header.in_order and writer.in_order,
        )

    @contextmanager
    def _appending(self) -> Generator["_Writer"]:
        """A writer at the end of the draft's files; at an error they are cut back to what they were."""
        names = (TASKS, SPLITS, REFERENCES)
        sizes = {name: (self.root / name).stat().st_size for name in names}
        writer = _Writer(self.root, self.task_ids())
        try:
            yield writer
            writer.close()
        except BaseException:
            writer.close()
            for name, size in sizes.items():
                os.truncate(self.root / name, size)
            writer.remove_files()
            raise


class _Writer:
    """Appends rows to a draft, with the fingerprint of what it wrote."""

    def __init__(self, root: Path, known: set[str]) -> None:
        self.tasks = 0
        self.counts: dict[str, int] = {}
        self.in_order = True
        """Ids rise, in the tasks and in the references, and above those that were there."""
        self._last: dict[str, str] = dict.fromkeys((TASKS, REFERENCES), max(known, default=""))
        self._root = root
        self._known = known
        self._folders: list[Path] = []
        self._state = hashlib.sha256()
        self._files = {name: (root / name).open("ab") for name in (TASKS, SPLITS, REFERENCES)}

    def problem(self, row: Row) -> Problem | None:
        """What forbids the row in this draft."""
        task_id = row.question.id
        if "/" in task_id or "\\" in task_id or task_id.startswith("."):
            return Problem("malformed-row", row.where, f"an id is one plain file name, not {task_id!r}")
        if task_id in self._known:
            return Problem("duplicate-id", row.where, f"a second task with the id {task_id!r}")
        return None

    def write(self, row: Row) -> None:
        line = self.write_question(row.question, row.split)
        reference = self.write_reference(row.question.id, row.reference)
        self._state.update(line + reference)
        self._put(ASSETS, row, row.assets)
        self._put(PRIVATE_FILES, row, row.private_files)

    def write_question(self, question: Question, split: Split | None) -> bytes:
        # Canonical by construction, texts and lists alone: the walk of `canonical_json` would find nothing.
        line = orjson.dumps(question.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS) + b"\n"
        self._append(TASKS, question.id, line)
        if split is not None:
            self._files[SPLITS].write(orjson.dumps([question.id, split]) + b"\n")
        self._known.add(question.id)
        self.tasks += 1
        name = f"{question.family}/{question.subtopic}"
        self.counts[name] = self.counts.get(name, 0) + 1
        return line

    def write_reference(self, task_id: str, fields: Mapping[str, Any]) -> bytes:
        line = canonical_json({**fields, "task": task_id}) + b"\n"
        self._append(REFERENCES, task_id, line)
        return line

    def _append(self, name: str, task_id: str, line: bytes) -> None:
        self._files[name].write(line)
        self.in_order = self.in_order and task_id > self._last[name]
        self._last[name] = task_id

    def fingerprint(self) -> str:
        return "sha256:" + self._state.hexdigest()

    def close(self) -> None:
        for handle in self._files.values():
            handle.close()

    def remove_files(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _put(self, kind: str, row: Row, files: Mapping[str, Path | bytes]) -> None:
        if not files:
            return
        folder = self._root / kind / row.question.id
        self._folders.append(folder)
        for name, content in files.items():
            if not is_plain(name):
                raise ReleaseError(f"{row.where}: {name!r} is not a plain path inside the task")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                try:
                    shutil.copyfile(content, target)
                except OSError as error:
                    raise ReleaseError(f"{row.where}: its file {name!r}: {error.strerror}") from None
            else:
                target.write_bytes(content)


def read_header(root: Path) -> DraftHeader:
    """Read and check `draft.json`. Raises ReleaseError."""
    try:
        return DraftHeader.model_validate_json((root / HEADER).read_bytes())
    except OSError as error:
        raise ReleaseError(f"{root} is not a draft: {HEADER}: {error.strerror}") from None
    except ValidationError as error:
        raise ReleaseError(f"{root / HEADER}: {describe(error)}") from None


def _write_header(root: Path, header: DraftHeader) -> None:
    _write_atomically(root / HEADER, header.model_dump_json(indent=1).encode() + b"\n")


def _write_atomically(path: Path, data: bytes) -> None:
    work = path.with_name(f".{path.name}.new")
    work.write_bytes(data)
    work.replace(path)


def _rows(path: Path) -> Iterator[Any]:
    with path.open("rb") as handle:
        yield from map(orjson.loads, handle)


def _appended(known: tuple[str, ...], *more: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *(item for item in more if item))))


def _inside(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _pin(path: Path) -> Payload:
    return Payload(digest=digest_file(path), size=path.stat().st_size)
