"""Writing a release folder: the one way tasks, references and lake become frozen (DATA-02).

Takes references as plain values and gives each a canary; reads them back through the grader before the folder
gets its name, so a release that exists is one that loads.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from catalog.digest import canonical_json
from verifier.grade import verify_release
from verifier.layout import (
    REFERENCES,
    SPLITS,
    TASKS,
    Header,
    ReleaseError,
    describe,
    is_plain,
    payload_of,
    write_header,
)
from verifier.release import Release
from verifier.task import Task


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
    """Write the release folder `destination` (which must not exist) and load it.

    `references` gives per task id `answer` and, for numbers, `absolute`, `relative` and `unit`. `texts` are
    extra files at the top, such as a licence. Equal input gives equal bytes. Raises ReleaseError when the
    result would not load; then nothing is left behind.
    """
    if destination.exists():
        raise ReleaseError(f"{destination} exists already: remove it or choose another folder")
    destination.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        ordered = sorted(tasks, key=lambda task: task.id)
        rows = [_reference(name, task_id, references[task_id]) for task_id in sorted(references)]
        files = {TASKS: _lines([task.model_dump(mode="json") for task in ordered]), REFERENCES: _lines(rows)}
        files |= {f"lake/{path}": data for path, data in (lake or {}).items()}
        for task_id, own in (assets or {}).items():
            files |= {f"public/assets/{task_id}/{path}": data for path, data in own.items()}
        files |= {path: text.encode() for path, text in (texts or {}).items()}
        for path, data in files.items():
            if not is_plain(path):
                raise ReleaseError(f"{name}: {path!r} is not a plain path inside the release")
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_bytes(data)
        header = Header(
            name=name,
            licence=licence,
            sources=tuple(sources),
            notes=tuple(notes),
            no_training=no_training,
            families={family: tuple(subtopics) for family, subtopics in families.items()},
            counts={split: sum(task.split == split for task in ordered) for split in SPLITS},
            lake_descriptions=dict(lake_descriptions or {}),
            payload=payload_of(work, sorted(files)),
        )
        write_header(work, header)
        verify_release(Release.load(work))
        work.chmod(0o755)
        work.replace(destination)
    except ValidationError as error:
        raise ReleaseError(f"release {name!r}: {describe(error)}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Release.load(destination)


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(canonical_json(row) + b"\n" for row in rows)


def _reference(release: str, task_id: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    seed = f"{release}\n{task_id}\n{fields.get('answer')}".encode()
    return {**fields, "task": task_id, "canary": f"rinr-canary-{hashlib.sha256(seed).hexdigest()[:16]}"}
