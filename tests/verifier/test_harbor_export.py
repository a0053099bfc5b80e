"""Releases as Harbor tasks: valid by Harbor's schema, private where they must be, graded as here."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.fixtures.releases import tiny_release
from tests.verifier.answer_table import DECISIONS, OPTIONS, REFERENCES
from verifier.draft import Draft
from verifier.freeze import freeze
from verifier.grade import Grader
from verifier.harbor_export import MARKER, export_release
from verifier.importers.base import Row
from verifier.importers.harbor import Harbor
from verifier.release import Release, ReleaseError
from verifier.task import AnswerFormat, Task

SCHEMA = Path(os.environ.get("RINR_DATA", "../shared/data")) / "harbor/task_toml.schema.json"
REFERENCE_WORDS = ("answer", "absolute", "relative", "unit")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return tiny_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def folder(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "tasks"
    export = export_release(release, folder)
    assert (export.tasks, export.left_out) == (len(release.tasks), [])
    return folder


@pytest.mark.skipif(not SCHEMA.is_file(), reason="Harbor's schema is not here (RINR_DATA)")
def test_every_task_toml_is_valid_by_harbors_schema(folder: Path):
    schema = json.loads(SCHEMA.read_text())
    found = sorted(folder.glob("*/task.toml"))
    for path in found:
        jsonschema.validate(tomllib.loads(path.read_text()), schema)
    assert found


def test_a_task_is_offline_from_its_build_to_its_reward(folder: Path):
    for task in folder.glob("*/task.toml"):
        said = tomllib.loads(task.read_text())
        assert said["environment"]["network_mode"] == "no-network"
        script = (task.parent / "tests/test.sh").read_text() + (task.parent / "tests/grade.py").read_text()
        for word in ("apt", "pip ", "uv ", "curl", "http"):
            assert word not in script


def references(release: Release) -> dict[str, dict[str, Any]]:
    lines = release.references_path.read_text().splitlines()
    return {row["task"]: row for row in map(json.loads, lines)}


@pytest.mark.spec("EVID-02")
def test_a_reference_is_in_the_tests_folder_and_in_nothing_that_an_agent_sees(folder: Path, release: Release):
    for task_id, reference in references(release).items():
        task = folder / task_id
        assert json.loads((task / "tests/reference.json").read_text())["answer"] == reference["answer"]
        for path in (task / "environment").rglob("*"):
            assert path.name not in ("reference.json", "grade.py", "test.sh", "references.jsonl")
        for path in (task / "task.toml", task / "instruction.md", *(task / "environment").rglob("*")):
            assert not path.is_file() or reference["canary"] not in path.read_text(errors="replace")
        assert not (task / "solution").exists()
    assert "references" in (folder / MARKER).read_text()


def test_an_export_into_a_release_or_a_full_folder_is_refused(release: Release, tmp_path: Path):
    for place in (release.root, release.root / "tasks", release.root / "private/x"):
        with pytest.raises(ReleaseError, match="lies in the release"):
            export_release(release, place)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(ReleaseError, match="not empty"):
        export_release(release, tmp_path / "full")
    with pytest.raises(ReleaseError, match="unknown task"):
        export_release(Release(release.root, release.header, ()), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_one_split_can_be_exported_alone(release: Release, tmp_path: Path):
    export = export_release(release, tmp_path / "val", split="val")
    assert {path.parent.name for path in export.folder.glob("*/task.toml")} == {
        task.id for task in release.split("val")
    }


@pytest.mark.spec("DATA-02")
def test_what_was_exported_imports_again_as_the_same_questions_and_answers(
    folder: Path, release: Release, tmp_path: Path
):
    importer = Harbor(folder, licence="CC0-1.0")
    rows = [row for row in importer.rows() if isinstance(row, Row)]
    known = references(release)
    assert {row.question.id for row in rows} == known.keys()
    for row in rows:
        task = release.task(row.question.id)
        assert row.question.model_dump() == task.model_dump(exclude={"split"})
        assert row.split == task.split
        ours = {name: known[task.id].get(name) for name in REFERENCE_WORDS if known[task.id].get(name)}
        assert {name: value for name, value in row.reference.items() if value} == ours
    draft = Draft.create(tmp_path / "draft")
    draft.add(importer)
    assert set(draft.splits()) == known.keys()


def decided(root: Path, form: AnswerFormat) -> Release:
    task = Task(
        id="t",
        split="test",
        family="f",
        subtopic="s",
        material_group="g",
        prompt="Which?",
        options=OPTIONS if form is AnswerFormat.LETTER else (),
        answer_format=form,
    )
    return freeze(
        root,
        name="one",
        licence="CC0-1.0",
        sources=["made up"],
        families={"f": ["s"]},
        tasks=[task],
        references={"t": REFERENCES[form]},
    )


_GRADE_ALL = """
import importlib.util, json, pathlib, sys, tempfile
spec = importlib.util.spec_from_file_location("grade", sys.argv[1] + "/grade.py")
grade = importlib.util.module_from_spec(spec)
spec.loader.exec_module(grade)
rewards = []
work = pathlib.Path(tempfile.mkdtemp())
for text in json.load(sys.stdin):
    (work / "answer.txt").write_bytes(text.encode("utf-8", "replace"))
    grade.main(work / "answer.txt", work / "logs")
    rewards.append(float((work / "logs/reward.txt").read_text()))
grade.main(work / "missing", work / "logs")
rewards.append(float((work / "logs/reward.txt").read_text()))
print("REWARDS", json.dumps(rewards))
"""


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize("form", list(REFERENCES))
def test_an_exported_task_grades_every_answer_of_the_table_as_this_program_does(
    form: AnswerFormat, tmp_path: Path
):
    """Beside the standard library the subprocess has nothing: `-I -S` leaves no way to this checkout."""
    release = decided(tmp_path / "release", form)
    export = export_release(release, tmp_path / "export")
    texts = [f"so <answer>{row.text}</answer>" for row in DECISIONS if row.form is form]
    texts += [row.text for row in DECISIONS if row.form is form]
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    command = [sys.executable, "-I", "-S", "-c", _GRADE_ALL, str(export.folder / "t/tests")]
    done = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, check=True, cwd=tmp_path
    )
    found = json.loads(done.stdout.split("REWARDS")[1])
    with Grader(release) as grader:
        expected = [grader.grade("t", text).reward for text in texts]
    assert found == [*expected, 0.0]
    assert 1.0 in found


def test_names_with_odd_letters_become_names_that_harbor_takes(tmp_path: Path):
    from verifier.harbor_export import _harbor_name  # pyright: ignore[reportPrivateUsage]

    names = {_harbor_name("r", task) for task in ("a b", "a-b", "a_b", "ä", "..", "x" * 10)}
    assert len(names) == 6
    for name in names:
        org, _, rest = name.partition("/")
        assert org == "rinr"
        assert rest[0].isalnum()
        assert ".." not in name
