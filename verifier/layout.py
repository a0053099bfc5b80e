"""The folder of a frozen release, and the checks that trust none of it (DATA-02).

Layout: `release.json` (what it is, and digest and size of every other file), `public/tasks.jsonl`,
`public/assets/<task id>/...`, `private/references.jsonl`, `lake/...`. The release's digest is that of
`release.json` without its `digest` field, so it covers every byte.

Must not know references: a process of its own takes the digest of their file.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from catalog.digest import digest_file, digest_json
from verifier.answers import LETTERS
from verifier.private_digests import digests_aside
from verifier.task import AnswerFormat, Split, Task

HEADER: Final = "release.json"
TASKS: Final = "public/tasks.jsonl"
PRIVATE: Final = "private/"
REFERENCES: Final = "private/references.jsonl"
SPLITS: Final[tuple[Split, ...]] = ("train", "val", "test")


class ReleaseError(Exception):
    """A release is missing, malformed or changed. One line that names the entry and the file."""


class Payload(BaseModel):
    """One file of a release."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    size: int = Field(ge=0)
    """Bytes."""


def _is_empty(value: object) -> bool:
    # Written only where it says something: releases frozen before the field existed keep their digest.
    return not value


class Dropped(BaseModel):
    """A row of a source that was left out because the user allowed it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """The kind of problem, as the flag names it, e.g. `duplicate-options`."""
    where: str
    """File and row."""
    why: str


class Import(BaseModel):
    """What one import read, pinned: equal sources give an equal record on every machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    importer: str
    version: int
    files: dict[str, Payload]
    """Digest and size by path inside the source folder."""
    rows: int
    """Rows that were read."""
    tasks: int
    """Tasks that they became."""
    dropped: tuple[Dropped, ...] = ()
    fingerprint: str
    """Digest over the imported tasks and their references, in the order of the source."""


class Header(BaseModel):
    """`release.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["rinr-release"] = "rinr-release"
    version: Literal[1] = 1
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    licence: str = Field(min_length=1)
    sources: tuple[str, ...]
    """Where the content comes from, one line each."""
    notes: tuple[str, ...] = ()
    no_training: bool = False
    """The sources ask not to enter training corpora; reports repeat it (REP-04)."""
    families: dict[str, tuple[str, ...]]
    """Declared subtopics by family; a task outside them is an error."""
    counts: dict[Split, int]
    lake_descriptions: dict[str, str] = Field(default_factory=dict)
    """Public one-line descriptions by path inside the lake."""
    imports: tuple[Import, ...] = Field(default=(), exclude_if=_is_empty)
    """Where the tasks were imported from, in order."""
    split_rule: str = Field(default="", exclude_if=_is_empty)
    """How the splits were made, in words."""
    payload: dict[str, Payload]
    digest: str = ""

    def computed_digest(self) -> str:
        return digest_json(self.model_dump(mode="json", exclude={"digest"}))


def payload_of(root: Path, names: list[str]) -> dict[str, Payload]:
    """Digest and size of files below `root`, as `release.json` lists them."""
    return {
        name: Payload(digest=digest_file(root / name), size=(root / name).stat().st_size) for name in names
    }


def write_header(root: Path, header: Header) -> None:
    """Write `release.json` with the digest that its content has."""
    sealed = header.model_copy(update={"digest": header.computed_digest()})
    (root / HEADER).write_text(sealed.model_dump_json(indent=1) + "\n", encoding="utf-8")


def read_header(root: Path) -> Header:
    """Read and check `release.json` alone."""
    path = root / HEADER
    try:
        header = Header.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ReleaseError(f"{root} is not a release: {HEADER}: {error.strerror}") from None
    except ValidationError as error:
        raise ReleaseError(f"{path}: {describe(error)}") from None
    for required in (TASKS, REFERENCES):
        if required not in header.payload:
            raise ReleaseError(f"{path}: payload has no entry {required!r}")
    for name in header.payload:
        if not is_plain(name):
            raise ReleaseError(f"{path}: payload entry {name!r} is not a plain path inside the release")
    if header.digest != header.computed_digest():
        raise ReleaseError(f"{path}: its digest does not fit its content; it was changed after freezing")
    return header


def is_plain(name: str) -> bool:
    """Whether a payload entry names a file inside the release, in the one way to write it."""
    parts = PurePosixPath(name).parts
    return name not in ("", HEADER) and parts[:1] != ("/",) and ".." not in parts and name == "/".join(parts)


def check_payload(root: Path, header: Header) -> None:
    """Every listed file is there and unchanged, and nothing else is."""
    for path in root.rglob("*"):
        if path.is_symlink():
            raise ReleaseError(f"{root}: {path.relative_to(root)} is a symbolic link; copy the file instead")
    present = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} - {HEADER}
    for name in sorted(present - header.payload.keys()):
        raise ReleaseError(f"{root}: {name} is not listed in {HEADER}; remove the file or freeze again")
    for name, entry in sorted(header.payload.items()):
        if name not in present:
            raise ReleaseError(f"{root}: {name} is listed in {HEADER} and missing")
        _check_same(root, name, "size", (root / name).stat().st_size, entry.size)
    private = sorted(name for name in header.payload if name.startswith(PRIVATE))
    for name in sorted(header.payload.keys() - set(private)):
        _check_same(root, name, "digest", digest_file(root / name), header.payload[name].digest)
    # This process may be a run's, which never reads them (EVID-02).
    try:
        found = digests_aside([root / name for name in private])
    except OSError as error:
        raise ReleaseError(f"{root}: {error}") from None
    for name, digest in zip(private, found, strict=True):
        _check_same(root, name, "digest", digest, header.payload[name].digest)


def _check_same(root: Path, name: str, what: str, found: int | str, listed: int | str) -> None:
    if found != listed:
        raise ReleaseError(f"{root}: {name} was changed ({what} {found}, frozen as {listed})")


def read_tasks(root: Path, header: Header) -> tuple[Task, ...]:
    """All tasks in order of id, checked against the header."""
    return tuple(stream_tasks(root, header))


def stream_tasks(root: Path, header: Header) -> Iterator[Task]:
    """The tasks in order of id, one in memory at a time; at the end their numbers are checked too."""
    counts: dict[Split, int] = dict.fromkeys(SPLITS, 0)
    last: Task | None = None
    place = f"{root}: {TASKS} line"
    try:
        with (root / TASKS).open("rb") as handle:
            for number, line in enumerate(handle, 1):
                task = _read_task(line, header, place, number, last)
                counts[task.split] += 1
                yield task
                last = task
    except OSError as error:
        raise ReleaseError(f"{root}: {TASKS}: {error}") from None
    for split, found in counts.items():
        if found != (listed := header.counts.get(split, 0)):
            raise ReleaseError(f"{root}: {TASKS} has {found} {split} tasks and {HEADER} says {listed}")


def _read_task(line: bytes, header: Header, place: str, number: int, last: Task | None) -> Task:
    """Where a task stands is put into words only when something is wrong: there may be a million."""
    try:
        task = Task.model_validate_json(line)
    except ValidationError as error:
        raise ReleaseError(f"{place} {number}: {describe(error)}") from None
    problem = _order_problem(task, last) or _task_problem(task, header)
    if problem:
        raise ReleaseError(f"{place} {number}, task {task.id!r}: {problem}")
    return task


def _order_problem(task: Task, last: Task | None) -> str:
    if last is None or task.id > last.id:
        return ""
    if task.id == last.id:
        return f"appears twice, in {last.split} and in {task.split}"
    return f"tasks are in order of id, and it comes after {last.id!r}"


def _task_problem(task: Task, header: Header) -> str:
    if "/" in task.id or "\\" in task.id or task.id.startswith("."):
        return "an id is one plain file name"
    if task.subtopic not in header.families.get(task.family, ()):
        return f"{task.family}/{task.subtopic} is not declared in {HEADER} families"
    options = task.options
    is_letter = task.answer_format is AnswerFormat.LETTER
    if is_letter != bool(options) or len(options) == 1 or len(options) > len(LETTERS):
        return f"options belong to the letter format, 2 to {len(LETTERS)} of them"
    if options and len({" ".join(text.casefold().split()) for text in options}) < len(options):
        return "two options have the same text"
    for name in task.files:
        if f"public/assets/{task.id}/{name}" not in header.payload:
            return f"its file {name!r} is not in {HEADER}"
    return ""


def describe(error: ValidationError) -> str:
    """The first problem of a validation error on one line: where, and what."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'entry'}: {first['msg']}"
