"""A frozen release as Harbor tasks, one folder each: questions that need no network and are graded offline.

An export holds references by its nature: in each task's tests/ folder, never in what an agent sees, and a
marker file says so. It is graded by copies of this program's own grading modules, so that both give one
verdict. Tasks with a rubric or a script are left out by name: their checks are no question and answer.
"""

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import tomli_w

from catalog.digest import digest_json, short
from verifier import answers
from verifier.importers.harbor import ANSWER_LINE, EXPORTED
from verifier.layout import HEADER, ReleaseError
from verifier.references import Reference, ReferenceError, pair_references
from verifier.release import Release
from verifier.task import Split, Task

MARKER: Final = "HOLDS-REFERENCES.txt"
IMAGE: Final = "python:3.12-slim"
_AGENT_SECONDS: Final = 900.0
_VERIFIER_SECONDS: Final = 60.0
_HERE: Final = Path(__file__).parent
_GRADING: Final = ("__init__.py", "answer_format.py", "comparison.py", "answers")
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_STUB: Final = (
    "# Stands in for the module that reads a release's references: here is one, in reference.json.\n"
    "from types import SimpleNamespace as Reference\n"
)
_TEST: Final = '#!/bin/sh\nexec python3 -I "$(dirname "$0")/grade.py"\n'


@dataclass
class Export:
    """What was written."""

    folder: Path
    tasks: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Task id and why it is no Harbor task."""


def export_release(release: Release, folder: Path, *, split: Split | None = None) -> Export:
    """Write the tasks of one split, or of all, into `folder`, which must not exist or be empty.

    Raises ReleaseError; then nothing is left behind in a folder that was not there.
    """
    _expect_place(folder)
    made = not folder.exists()
    export = Export(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shared: dict[str, Path] = {}
        for task, reference in pair_references(release.references_path, release.tasks):
            if split is not None and task.split != split:
                continue
            if task.checked_by or reference.rubric is not None:
                export.left_out.append((task.id, "a rubric or a script decides it"))
                continue
            _write_task(release, task, reference, folder / task.id, shared)
            export.tasks += 1
        if not export.tasks:
            raise ReleaseError(f"release {release.name} has no question to export{_of(split)}")
        (folder / MARKER).write_text(
            f"The folders here hold the private references of release {release.name} "
            f"({release.digest}), each task's in its tests/ folder.\n"
            "Show them to no model that is measured on this release.\n",
            encoding="utf-8",
        )
    except BaseException as error:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError | ReferenceError):
            raise ReleaseError(f"release {release.name}: {error}") from None
        raise
    return export


def _of(split: Split | None) -> str:
    return f" in {split}" if split is not None else ""


def _expect_place(folder: Path) -> None:
    for place in (folder.resolve(), *folder.resolve().parents):
        if (place / HEADER).exists() or (place / "draft.json").exists():
            raise ReleaseError(f"{folder} lies in the release or draft {place}: export to another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ReleaseError(f"{folder} exists and is not empty: name a new folder")


def _write_task(
    release: Release, task: Task, reference: Reference, folder: Path, shared: dict[str, Path]
) -> None:
    environment, tests = folder / "environment", folder / "tests"
    environment.mkdir(parents=True)
    tests.mkdir()
    (folder / "task.toml").write_bytes(tomli_w.dumps(_toml(release, task)).encode())
    (folder / "instruction.md").write_text(f"{task.prompt}{ANSWER_LINE}\n", encoding="utf-8")
    copies = _copy_public(release, task, environment, shared)
    lines = [f"FROM {IMAGE}", *(f"COPY {name} /{name}" for name in copies), "WORKDIR /app"]
    (environment / "Dockerfile").write_text("\n".join(lines) + "\n", encoding="utf-8")
    stated = {
        "format": str(task.answer_format),
        "options": list(task.options),
        "answer": reference.answer,
        "absolute": reference.absolute,
        "relative": reference.relative,
        "unit": reference.unit,
    }
    (tests / "reference.json").write_bytes(orjson.dumps(stated, option=orjson.OPT_INDENT_2) + b"\n")
    shutil.copyfile(_HERE / "harbor_grade.py", tests / "grade.py")
    (tests / "test.sh").write_text(_TEST, encoding="utf-8")
    (tests / "test.sh").chmod(0o755)
    _copy_grading(tests / "grading/verifier", shared)


def _copy_grading(target: Path, shared: dict[str, Path]) -> None:
    """The modules that decide a verdict, as they are."""
    for name in _GRADING:
        source = _HERE / name
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            _place(path, target / path.relative_to(_HERE), shared)
    (target / "references.py").write_text(_STUB, encoding="utf-8")


def _copy_public(release: Release, task: Task, environment: Path, shared: dict[str, Path]) -> list[str]:
    """Lake and assets into the build folder; the names of what is there."""
    found: list[str] = []
    for name, source in (("lake", release.lake), ("assets", release.assets(task.id))):
        if source is None:
            continue
        for path in sorted(source.rglob("*")):
            if path.is_file():
                _place(path, environment / name / path.relative_to(source), shared)
        found.append(name)
    return found


def _place(source: Path, target: Path, shared: dict[str, Path]) -> None:
    """A copy; within one export the same file has many names, but none outside of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    first = shared.get(str(source))
    if first is not None:
        try:
            os.link(first, target)
        except OSError:
            pass
        else:
            return
    shutil.copyfile(source, target)
    shared[str(source)] = target


def _toml(release: Release, task: Task) -> dict[str, Any]:
    said = {
        "family": task.family,
        "subtopic": task.subtopic,
        "material_group": task.material_group,
        "split": task.split,
        "licence": task.licence or release.licence,
        "canary": task.canary,
        "release": release.name,
        "release_digest": release.digest,
        EXPORTED: {
            "id": task.id,
            "source": task.source,
            "format": str(task.answer_format),
            "options": list(task.options),
            "licence": task.licence,
            "grading_version": answers.GRADING_VERSION,
        },
    }
    return {
        "schema_version": "1.4",
        "task": {
            "name": _harbor_name(release.name, task.id),
            "description": f"{task.family}/{task.subtopic}",
            "keywords": [task.family, task.subtopic],
        },
        "metadata": {name: value for name, value in said.items() if value},
        "agent": {"timeout_sec": _AGENT_SECONDS},
        "verifier": {"timeout_sec": _VERIFIER_SECONDS},
        "environment": {"network_mode": "no-network", "cpus": 1, "memory_mb": 2048, "storage_mb": 10240},
    }


def _harbor_name(release: str, task_id: str) -> str:
    """`rinr/<release>.<task>` in the letters that Harbor allows; what had others gets a digest."""
    plain = _NAME.sub("-", f"{release}.{task_id}").replace("..", ".").strip("-.") or "task"
    same = plain == f"{release}.{task_id}"
    return f"rinr/{plain if same else f'{plain}-{short(digest_json([release, task_id]), 8)}'}"
