"""Harbor tasks in and out as a user calls it, and an evaluation whose rubric a judge decides."""

import json
from pathlib import Path

import pytest

from catalog.database import Catalog
from tests.fixtures.chat_answers import said
from tests.fixtures.command_line import rinr
from tests.fixtures.faulty_server import FaultyServer
from tests.fixtures.sandboxes import QUICK
from tests.fixtures.stub_server import StubServer
from tests.verifier.test_importer_harbor import TOML, task_folder
from tests.verifier.test_rubric_grading import MIXED, released
from verifier.grade import Grader
from verifier.outside import Measured
from verifier.release import Release

TINY = "tests/fixtures/tiny_model"
PROGRAM = """
def run(task, api):
    api.submit(api.generate([{"role": "user", "content": task["prompt"]}]))
"""


def test_harbor_tasks_are_imported_frozen_and_questions_exported_by_command(tmp_path: Path):
    task_folder(tmp_path / "tasks/one")
    task_folder(tmp_path / "tasks/two", TOML.replace("no-network", "public"))
    draft, release = str(tmp_path / "draft"), str(tmp_path / "release")
    common = ("release", "import", "harbor", str(tmp_path / "tasks"), "--licence", "MIT", "--into", draft)
    refused = rinr(*common, "--assume", "wings")
    assert refused.returncode != 0
    assert "--assume wings" in refused.stderr
    done = rinr(*common, "--assume", "network")
    assert done.returncode == 0, done.stderr
    assert "2 tasks from 2 rows of harbor" in done.stdout
    frozen = rinr("release", "freeze", draft, release)
    assert frozen.returncode == 0, frozen.stderr
    with Grader(Release.load(Path(release))) as grader:
        assert grader.grade("one", "done", Measured(rewards={"reward": 1.0})).correct
    exported = rinr("release", "export", "harbor", "tests/fixtures/tiny-release", str(tmp_path / "out"))
    assert exported.returncode == 0, exported.stderr
    assert "private references" in exported.stdout
    assert (tmp_path / "out/HOLDS-REFERENCES.txt").exists()
    inside = rinr("release", "export", "harbor", "tests/fixtures/tiny-release", f"{release}/out")
    assert inside.returncode != 0
    assert "lies in the release" in inside.stderr
    assert "Traceback" not in inside.stderr


@pytest.mark.spec("RL-04")
def test_an_evaluation_asks_the_configured_judge_and_without_one_does_not_begin(tmp_path: Path):
    released(tmp_path / "release", MIXED, checked_by=("judge",))
    (tmp_path / "h.py").write_text(PROGRAM)
    with (
        StubServer(policy=lambda prompt, seed, temperature: "a suppressor <answer>TP53</answer>") as stub,
        FaultyServer(lambda asked: said('{"satisfaction": 1, "why": "w"}')) as server,
    ):
        command = (
            *("evaluate", "--harness", str(tmp_path / "h.py"), "--model", stub.url, "--tokenizer", TINY),
            *("--release", str(tmp_path / "release"), "--split", "test", "--set", QUICK),
            *("--set", f"storage.root={tmp_path / 'runs'}", "--set", "run_id=judged"),
            *("--set", "model.served_name=stub"),
        )
        without = rinr(*command)
        assert without.returncode != 0
        assert "judge=chat" in without.stderr
        assert len(without.stderr.strip().splitlines()) == 1
        done = rinr(
            *command, "--set", "judge=chat", "--set", f"judge.base_url={server.url}", "--set", "judge.model=j"
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "1 of 1 first answers right" in done.stdout
    assert "judge j: 1 requests" in done.stderr
    run = Catalog(tmp_path / "runs/catalog.db").run("judged")
    assert run is not None
    assert run.config["judge"]["model"] == "j"
    assert "hidden words" not in json.dumps(run.config)
