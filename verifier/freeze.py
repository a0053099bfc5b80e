"""Writing a release folder: the one way tasks, references and lake become frozen (DATA-02).

Takes a draft and gives each reference a canary; checks the folder as a stranger would before it gets its
name, so a release that exists is one that loads. Tasks are streamed: only their ids are held in memory.
"""

import hashlib
import os
import shutil
import tempfile
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from verifier import draft as drafts
from verifier.audit.model import AUDIT_FILE
from verifier.audit_release import audit_folder
from verifier.draft import Draft
from verifier.importers.paper import check_name
from verifier.inventory import INVENTORY_FILE, read_inventory
from verifier.layout import (
    REFERENCES,
    SPLITS,
    TASKS,
    Header,
    ReleaseError,
    check_payload,
    describe,
    is_plain,
    payload_of,
    read_header,
    write_header,
)
from verifier.release import Release
from verifier.task import Split, Task
from verifier.verification import verify

_BY_TASK: Final = (drafts.ASSETS, drafts.PRIVATE_FILES)
_FOLDERS: Final = (drafts.ASSETS, drafts.PRIVATE_FILES, drafts.LAKE)
_TEXTS: Final = "texts"


class Declared(BaseModel):
    """What a release says of itself that its tasks do not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    licence: str = ""
    """SPDX expression; the sources' licences joined by AND if empty."""
    families: dict[str, tuple[str, ...]] | None = None
    """Subtopics by family that may occur; those that do occur if None."""
    notes: tuple[str, ...] = ()
    no_training: bool = False


def freeze_draft(draft: Draft, destination: Path, declared: Declared, *, audited: bool = True) -> Header:
    """Make the release folder `destination`, which must not exist, from a draft, which stays as it is.

    Equal input gives equal bytes. The audit (DATA-05) and the lake's inventory become part of the release;
    `audited=False` leaves both out. Raises ReleaseError when a task has no split or the result would not
    load; then nothing is left behind.
    """
    check_name(declared.name, draft)
    with _work_folder(destination) as work:
        counts, families, left_out = _write_tasks(draft, work)
        _write_references(draft, work, declared.name, left_out)
        for folder in _FOLDERS:
            _place(draft.root / folder, work / folder, left_out if folder in _BY_TASK else frozenset())
        _place(draft.root / _TEXTS, work)
        said = draft.header
        if audited:
            _write_inventory(work, said.lake_descriptions)
        try:
            header = Header(
                name=declared.name,
                licence=declared.licence or " AND ".join(said.licences),
                sources=said.sources,
                notes=(*said.notes, *declared.notes),
                no_training=said.no_training or declared.no_training,
                families=declared.families if declared.families is not None else families,
                counts=counts,
                lake_descriptions=said.lake_descriptions,
                imports=said.imports,
                split_rule=said.split_rule,
                payload=payload_of(work, sorted(_files(work))),
            )
        except ValidationError as error:
            raise ReleaseError(f"release {declared.name!r}: {describe(error)}") from None
        write_header(work, _audited(work, header) if audited else header)
        header = _checked(work) if audited else verify(work)
        work.chmod(0o755)
        work.replace(destination)
    return header


def freeze(
    destination: Path,
    *,
    name: str,
    licence: str,
    sources: Sequence[str],
    families: Mapping[str, Sequence[str]],
    tasks: Sequence[Task],
    references: Mapping[str, Mapping[str, Any]],
    lake: Mapping[str, bytes] | None = None,
    assets: Mapping[str, Mapping[str, bytes]] | None = None,
    texts: Mapping[str, str] | None = None,
    lake_descriptions: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    no_training: bool = False,
) -> Release:
    """Freeze tasks that are in memory into the folder `destination`, which must not exist, and load it.

    Without audit and inventory, so that releases made like this keep the digest that they had before there
    were any: both are made when asked for. `references` gives per task id the fields of a reference but
    `task` and `canary`. `texts` are extra files at the top, such as a licence. Raises ReleaseError as
    `freeze_draft` does.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{destination.name}-draft-", dir=destination.parent) as folder:
        draft = Draft.create(Path(folder))
        draft.fill(tasks, references)
        draft.declare(sources=sources, notes=notes, lake_descriptions=lake_descriptions or {})
        files = {f"{drafts.LAKE}/{path}": data for path, data in (lake or {}).items()}
        for task_id, own in (assets or {}).items():
            files |= {f"{drafts.ASSETS}/{task_id}/{path}": data for path, data in own.items()}
        files |= {f"{_TEXTS}/{path}": text.encode() for path, text in (texts or {}).items()}
        for path, data in files.items():
            if not is_plain(path):
                raise ReleaseError(f"{name}: {path!r} is not a plain path inside the release")
            (draft.root / path).parent.mkdir(parents=True, exist_ok=True)
            (draft.root / path).write_bytes(data)
        declared = Declared(
            name=name,
            licence=licence,
            families={family: tuple(subtopics) for family, subtopics in families.items()},
            no_training=no_training,
        )
        freeze_draft(draft, destination, declared, audited=False)
    return Release.load(destination)


def _write_inventory(work: Path, descriptions: Mapping[str, str]) -> None:
    """What programs are told of the lake, read once for all runs; nothing for a release without a lake."""
    if any((work / drafts.LAKE).rglob("*")):
        inventory = read_inventory(work / drafts.LAKE, descriptions=descriptions)
        (work / INVENTORY_FILE).write_text(inventory.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _audited(work: Path, header: Header) -> Header:
    """Write the audit, which pairs every task with its reference; give the header with its entry."""
    found = audit_folder(work, header)
    (work / AUDIT_FILE).write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    payload = {**header.payload, **payload_of(work, [AUDIT_FILE])}
    return header.model_copy(update={"payload": dict(sorted(payload.items()))})


def _checked(work: Path) -> Header:
    """The header as it is read, with every file's digest compared."""
    header = read_header(work)
    check_payload(work, header)
    return header


@contextmanager
def _work_folder(destination: Path) -> Generator[Path]:
    """A folder beside the destination, gone afterwards unless it was renamed."""
    if destination.exists():
        raise ReleaseError(f"{destination} exists already: remove it or choose another folder")
    destination.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_tasks(
    draft: Draft, work: Path
) -> tuple[dict[Split, int], dict[str, tuple[str, ...]], frozenset[str]]:
    """Write the tasks that have a split; give counts, the subtopics that occur, and the ids left out."""
    splits = draft.splits()
    occurring: set[tuple[str, str]] = set()
    counts: dict[Split, int] = dict.fromkeys(SPLITS, 0)
    without: list[str] = []
    (work / TASKS).parent.mkdir(parents=True, exist_ok=True)
    with (work / TASKS).open("wb") as handle:
        for row in _ordered(draft, drafts.TASKS, "id"):
            split = splits.pop(row["id"], None)
            if split is None:
                without.append(row["id"])
                continue
            counts[split] += 1
            occurring.add((row["family"], row["subtopic"]))
            handle.write(_canonical({**row, "split": split}))
    if len(without) != draft.header.left_out:
        some = "1 task has" if len(without) == 1 else f"{len(without)} tasks have"
        example = f", e.g. {without[0]!r}" if without else ""
        raise ReleaseError(f"{draft.root}: {some} no split{example}; run: rinr release split")
    if splits:
        raise ReleaseError(
            f"{draft.root}: a split names {next(iter(splits))!r}, which is no task of the draft"
        )
    families = {
        family: tuple(subtopic for subtopic in subtopics if (family, subtopic) in occurring)
        for family, subtopics in draft.header.families.items()
    }
    return counts, {family: own for family, own in families.items() if own}, frozenset(without)


def _write_references(draft: Draft, work: Path, release: str, left_out: frozenset[str]) -> None:
    (work / REFERENCES).parent.mkdir(parents=True, exist_ok=True)
    with (work / REFERENCES).open("wb") as handle:
        for fields in _ordered(draft, drafts.REFERENCES, "task"):
            if fields["task"] in left_out:
                continue
            seed = f"{release}\n{fields['task']}\n{fields.get('answer')}".encode()
            canary = f"rinr-canary-{hashlib.sha256(seed).hexdigest()[:16]}"
            handle.write(_canonical({**fields, "canary": canary}))


def _canonical(row: Mapping[str, Any]) -> bytes:
    # The rows come from JSON, which holds no NaN: the walk of `canonical_json` is not needed a second time.
    return orjson.dumps(row, option=orjson.OPT_SORT_KEYS) + b"\n"


def _ordered(draft: Draft, name: str, field: str) -> Iterator[dict[str, Any]]:
    """The rows of a draft's file in order of a text field; at most that field and offsets are in memory."""
    with (draft.root / name).open("rb") as handle:
        if draft.header.in_order:
            yield from map(orjson.loads, handle)
            return
        ids: list[str] = []
        offsets = array("Q")
        at = 0
        for line in handle:
            ids.append(orjson.loads(line)[field])
            offsets.append(at)
            at += len(line)
        for index in sorted(range(len(ids)), key=ids.__getitem__):
            handle.seek(offsets[index])
            yield orjson.loads(handle.readline())


def _place(source: Path, target: Path, left_out: frozenset[str] = frozenset()) -> None:
    """Every file below `source` at `target`: the same bytes on disk where links are possible, else a copy.

    Folders at the top that are named in `left_out` stay behind.
    """
    for name in _files(source):
        if name.split("/", 1)[0] in left_out:
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copyfile(source / name, target / name)


def _files(folder: Path) -> list[str]:
    found: list[str] = []
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise ReleaseError(f"{path} is a symbolic link; copy the file instead")
        if path.is_file():
            found.append(path.relative_to(folder).as_posix())
    return sorted(found)
