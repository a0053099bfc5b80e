"""Harbor tasks as tasks of ours: the four samples, what stays private, what is refused and where."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.outside import expect_checkers
from verifier.draft import Draft
from verifier.freeze import Declared, freeze_draft
from verifier.grade import Grader
from verifier.harbor_export import export_release
from verifier.importers.base import Problem, Row
from verifier.importers.harbor import Harbor
from verifier.release import Release, ReleaseError

SAMPLES = Path(os.environ.get("RINR_DATA", "../shared/data")) / "harbor/sample-tasks"
sampled = pytest.mark.skipif(not SAMPLES.is_dir(), reason="Harbor's sample tasks are not here (RINR_DATA)")

TOML = """
version = "1.0"
[metadata]
family = "made"
subtopic = "up"
licence = "CC0-1.0"
split = "test"
canary = "canary GUID 1"
[verifier]
timeout_sec = 9.0
[environment]
network_mode = "no-network"
"""


def task_folder(root: Path, toml: str = TOML, **files: str) -> Path:
    stated = {
        "task.toml": toml,
        "instruction.md": "Write Fe to /app/answer.txt.\n",
        "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
        "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
        **{name.replace("__", "/"): text for name, text in files.items()},
    }
    for name, text in stated.items():
        if text:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


def the_row(folder: Path, **options: Any) -> Row:
    (row,) = Harbor(folder, licence="MIT", **options).rows()
    assert isinstance(row, Row), row
    return row


def the_problem(folder: Path) -> Problem:
    (row,) = Harbor(folder, licence="MIT").rows()
    assert isinstance(row, Problem)
    return row


def rows(**options: Any) -> Mapping[str, Row]:
    found = list(Harbor(SAMPLES, licence="Apache-2.0", **options).rows())
    assert all(isinstance(row, Row) for row in found)
    return {row.question.id: row for row in found if isinstance(row, Row)}


def released(folder: Path, root: Path, **options: Any) -> Release:
    draft = Draft.create(root / "draft")
    draft.add(Harbor(folder, licence="Apache-2.0", **options))
    draft.set_splits({question.id: "test" for question in draft.questions()}, "all in test")
    freeze_draft(draft, root / "release", Declared(name="tasks"))
    return Release.load(root / "release")


@sampled
def test_the_four_sample_tasks_import_and_say_what_they_require():
    found = rows()
    assert {name: row.question.surroundings.requires for name, row in found.items()} == {  # type: ignore[union-attr]
        "multi-reward": ("image", "network"),
        "multi-step": ("image", "network"),
        "simple-task": ("network",),
        "simulated-user": ("image", "mcp", "network", "services"),
    }
    assert {row.question.answer_format for row in found.values()} == {"files"}
    assert found["multi-step"].question.source == "harbor/hello-multi-step-full"
    assert "harbor-canary GUID" in found["multi-step"].question.canary
    assert found["simple-task"].question.prompt.startswith("Create a file called hello.txt")


@sampled
def test_the_steps_of_a_sample_keep_their_prompts_files_gates_and_variables():
    row = rows()["multi-step"]
    assert row.question.surroundings is not None
    assert [step.name for step in row.question.surroundings.steps] == ["scaffold", "implement", "document"]
    assert row.question.prompt == row.question.surroundings.steps[0].prompt
    assert row.question.files == ("steps/implement/config.txt", "steps/implement/setup.sh")
    assert row.question.surroundings.variables == {"GREETER_PROJECT": "hello-multi-step-full"}
    first, second, third = row.reference["script"]["steps"]
    assert (first["minimum"], second["minimum"], third["minimum"]) == ({"reward": 1.0}, {"reward": 0.5}, {})
    assert second["environment"] == {"EXPECTED_NAME": "Harbor", "EXPECTED_GREETING": "Hello, Harbor!"}
    assert second["tests"] == ["tests", "steps/implement/tests"]
    assert {first["seconds"], second["seconds"], third["seconds"]} == {30.0}


@sampled
@pytest.mark.spec("EVID-02")
def test_tests_and_solutions_of_the_samples_are_private_files_and_nowhere_public(tmp_path: Path):
    release = released(SAMPLES, tmp_path)
    public = "".join(
        path.read_text(errors="replace") for path in (release.root / "public").rglob("*") if path.is_file()
    )
    private = [path for path in (release.root / "private/files").rglob("*") if path.is_file()]
    assert len(private) == sum(len(row.private_files) for row in rows().values())
    for path in private:
        for line in path.read_text().splitlines():
            assert len(line.strip()) < 30 or line.strip() not in public
    assert not [name for name in release.header.payload if name.startswith("public") and "tests/" in name]


@sampled
def test_a_run_on_tasks_that_no_sandbox_can_hold_is_refused_in_one_line(tmp_path: Path):
    release = released(SAMPLES, tmp_path)
    with pytest.raises(ReleaseError, match=r"requires image, network.*--assume") as caught:
        expect_checkers(release, judge=False)
    assert "\n" not in str(caught.value)


@sampled
def test_assumed_needs_are_taken_away_and_written_into_the_release(tmp_path: Path):
    release = released(SAMPLES / "multi-step", tmp_path, assume=("network", "image"))
    expect_checkers(release, judge=False)
    assert "Harbor tasks taken not to need: image, network" in release.header.notes
    with Grader(release):
        pass


@sampled
def test_a_release_of_script_tasks_has_no_question_to_export(tmp_path: Path):
    release = released(SAMPLES, tmp_path)
    with pytest.raises(ReleaseError, match="no question to export"):
        export_release(release, tmp_path / "export")


def test_metadata_of_a_task_is_kept(tmp_path: Path):
    row = the_row(task_folder(tmp_path / "one"))
    question = row.question
    assert (question.family, question.subtopic, row.split) == ("made", "up", "test")
    assert (question.licence, question.canary) == ("CC0-1.0", "canary GUID 1")
    assert question.surroundings is not None
    assert question.surroundings.requires == ()


@pytest.mark.parametrize("line", ['version = "1.0"', 'schema_version = "1.4"', 'schema_version = "1.1"', ""])
def test_both_spellings_of_the_version_are_read(tmp_path: Path, line: str):
    the_row(task_folder(tmp_path / "one", TOML.replace('version = "1.0"', line)))


def test_the_files_that_an_image_copies_into_its_working_folder_are_public(tmp_path: Path):
    docker = "FROM x\nWORKDIR /app\nCOPY data.csv run.sh ./\nCOPY more /app/deep\nADD one.txt other.txt\n"
    folder = task_folder(
        tmp_path / "one",
        environment__Dockerfile=docker,
        **{
            "environment/data.csv": "a,b",
            "environment/run.sh": "#!/bin/sh",
            "environment/more/x/y.txt": "y",
            "environment/one.txt": "1",
            "environment/unused.txt": "not in the image",
        },
    )
    row = the_row(folder)
    assert row.question.files == ("work/data.csv", "work/deep/x/y.txt", "work/other.txt", "work/run.sh")


REQUIRING = {
    "a docker image": ("docker_image = 'x'", {}, "image"),
    "an MCP server": ("[[environment.mcp_servers]]\nname = 'm'", {}, "mcp"),
    "a GPU": ("gpus = 1", {}, "gpu"),
    "a variable of the host": ("env = { KEY = '${KEY}' }", {}, "variables"),
    "windows": ("os = 'windows'", {}, "windows"),
    "another working folder": ("workdir = '/data'", {}, "image"),
    "an instruction that runs": (
        "",
        {"environment__Dockerfile": "FROM x\nWORKDIR /app\nRUN apt-get x"},
        "image",
    ),
    "a copy elsewhere": ("", {"environment__Dockerfile": "FROM x\nWORKDIR /app\nCOPY . /opt/x"}, "image"),
    "compose": ("", {"environment__docker-compose.yaml": "services: {}"}, "services"),
}


@pytest.mark.parametrize("name", REQUIRING)
def test_what_no_sandbox_gives_is_written_into_the_task_and_can_be_assumed_away(tmp_path: Path, name: str):
    line, files, need = REQUIRING[name]
    folder = task_folder(tmp_path / "one", f"{TOML}{line}\n", **files)
    assert the_row(folder).question.surroundings.requires == (need,)  # type: ignore[union-attr]
    assert the_row(folder, assume=(need,)).question.surroundings.requires == ()  # type: ignore[union-attr]


REFUSED = {
    "no test script": ({"tests__test.sh": "", "tests__other.sh": "x"}, "unsupported-task", "no test.sh"),
    "a verifier with variables of the host": (
        {"toml": TOML.replace("timeout_sec = 9.0", "env = { KEY = '${KEY}' }")},
        "unsupported-task",
        "variables of the host",
    ),
    "no instruction": ({"instruction.md": ""}, "malformed-row", "instruction.md is missing"),
    "not TOML": ({"toml": "version = "}, "malformed-row", "not TOML"),
    "an unknown version": ({"toml": 'version = "9"'}, "malformed-row", "version '9'"),
    "no time": ({"toml": TOML.replace("9.0", "0")}, "malformed-row", "verifier.timeout_sec"),
    "a step without a folder": ({"toml": TOML + "[[steps]]\nname = 'x'\n"}, "malformed-row", "step 'x'"),
    "a step outside": ({"toml": TOML + "[[steps]]\nname = '../x'\n"}, "malformed-row", "step '../x'"),
}


@pytest.mark.spec("DATA-02")
@pytest.mark.parametrize("name", REFUSED)
def test_a_task_that_cannot_be_held_is_a_problem_that_names_the_file(tmp_path: Path, name: str):
    files, kind, words = REFUSED[name]
    problem = the_problem(task_folder(tmp_path / "one", **files))
    assert problem.kind == kind
    assert problem.where == "one/task.toml"
    assert re.search(words, problem.why)


def test_rewards_with_declared_weights_become_weighted_criteria(tmp_path: Path):
    toml = TOML.replace("[verifier]", "[metadata.rubric]\ncorrect = 3.0\nfast = 1.0\n[verifier]")
    rubric = the_row(task_folder(tmp_path / "one", toml)).reference["rubric"]
    assert [(item["name"], item["weight"], item["check"]) for item in rubric["criteria"]] == [
        ("correct", 3.0, {"kind": "script", "key": "correct"}),
        ("fast", 1.0, {"kind": "script", "key": "fast"}),
    ]


@pytest.mark.spec("RL-04")
def test_a_changed_test_script_changes_the_verifiers_identity(tmp_path: Path):
    one = released(task_folder(tmp_path / "a/one"), tmp_path / "a")
    script = "#!/bin/bash\necho 0 > /logs/verifier/reward.txt\n"
    other = released(task_folder(tmp_path / "b/one", **{"tests/test.sh": script}), tmp_path / "b")
    assert one.verifier_identity() != other.verifier_identity()


@pytest.mark.spec("DATA-02")
def test_a_private_file_that_is_not_the_one_the_reference_pins_does_not_freeze(tmp_path: Path):
    draft = Draft.create(tmp_path / "draft")
    draft.add(Harbor(task_folder(tmp_path / "one"), licence="MIT"))
    (tmp_path / "draft/private/files/one/tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt")
    with pytest.raises(ReleaseError, match=r"tests/test\.sh is not the one"):
        freeze_draft(draft, tmp_path / "release", Declared(name="tasks"))


def test_a_symbolic_link_in_a_task_ends_the_import(tmp_path: Path):
    folder = task_folder(tmp_path / "one")
    (folder / "tests/link").symlink_to("/etc/passwd")
    with pytest.raises(ReleaseError, match="symbolic link"):
        list(Harbor(folder, licence="MIT").rows())


def test_a_folder_without_a_task_and_an_unknown_assumption_are_refused(tmp_path: Path):
    with pytest.raises(ReleaseError, match=r"no task\.toml"):
        Harbor(tmp_path, licence="MIT")
    with pytest.raises(ReleaseError, match="--assume wings: known are"):
        Harbor(task_folder(tmp_path / "one"), licence="MIT", assume=("wings",))
