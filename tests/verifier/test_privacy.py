"""References stay in the grader's process: by type, by what a run opens and by what it holds (EVID-02)."""

import copy
import json
import logging
import os
import pickle
import secrets
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError

from broker.budgets import Budgets
from broker.guidance import program_task
from tests.fixtures.releases import tiny_release
from verifier.answers import answer_form
from verifier.freeze import freeze
from verifier.references import Reference
from verifier.release import Release
from verifier.task import AnswerFormat, Split, Task

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.spec("EVID-02")
SECRET = Reference(task="t", answer="SECRETGENE", unit="secretunits")


def a_task(**fields: Any) -> Task:
    given = {"id": "t", "split": "test", "family": "f", "subtopic": "s", "material_group": "g", "prompt": "?"}
    return Task.model_validate({**given, "answer_format": "symbol", **fields})


@pytest.mark.parametrize(
    "field", ["answer", "canary_of_reference", "reference", "absolute", "rubric", "_answer"]
)
def test_a_task_has_no_room_for_a_private_field(field: str) -> None:
    with pytest.raises(ValidationError):
        a_task(**{field: "SECRETGENE"})
    smuggled = a_task().model_copy(update={field: "SECRETGENE"})
    given = program_task(
        smuggled, Budgets(), "", Release.load(ROOT / "tests/fixtures/tiny-release").inventory(), user_turns=1
    )
    assert "SECRET" not in repr(given)


def test_what_a_program_is_handed_is_these_fields_and_nothing_else(tmp_path: Path) -> None:
    release = tiny_release(tmp_path)
    for task in release.tasks:
        given = program_task(task, Budgets(), "guidance", release.inventory(), user_turns=1)
        assert set(given) == {
            "prompt", "family", "subtask", "files", "system", "budgets", "options", "answer_format",
            "inventory",
        }  # fmt: skip
        assert task.id not in (given["prompt"], given["family"], given["subtask"], *given["options"])


class Carrier(BaseModel):
    """A record that would take anything."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    anything: Any


class Arbitrary(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    reference: Reference


@pytest.mark.parametrize(
    "write",
    [
        pickle.dumps, copy.copy, copy.deepcopy, orjson.dumps, json.dumps, vars,
        lambda reference: orjson.dumps({"task": reference}),
        lambda reference: Carrier(anything=reference).model_dump_json(),
        lambda reference: Arbitrary(reference=reference).model_dump_json(),
        lambda reference: dict(reference), list, lambda reference: reference | {},
        lambda reference: TypeAdapter(Any).dump_json(reference),
    ],
)  # fmt: skip
def test_a_reference_refuses_to_be_written_or_copied(write: Any) -> None:
    refusals = (TypeError, PydanticSerializationError, orjson.JSONEncodeError)
    with pytest.raises(refusals) as caught:
        write(SECRET)
    assert "SECRET" not in str(caught.value).upper()


def test_a_reference_shows_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("rinr").warning("graded with %s %r", SECRET, [SECRET])
    shown = [repr(SECRET), str(SECRET), f"{SECRET}", "%s" % SECRET, repr([SECRET]), caplog.text]  # noqa: UP031
    shown.append(repr(Carrier(anything=SECRET)))
    shown.append(repr(Carrier(anything=SECRET).model_dump()))
    assert "SECRET" not in "".join(shown).upper()
    with pytest.raises(PydanticSchemaGenerationError):
        TypeAdapter(Reference)
    with pytest.raises(AttributeError):
        SECRET.note = 1  # type: ignore[attr-defined]


def test_a_reference_is_no_task_at_run_time() -> None:
    with pytest.raises(ValidationError):
        Task.model_validate(SECRET)
    with pytest.raises(AttributeError):
        program_task(SECRET, Budgets(), "", None, user_turns=0)  # type: ignore[arg-type]


SNIPPET = """
from broker.attempt import Attempt
from broker.guidance import program_task
from harness_lab.evidence import Interaction
from verifier.references import Reference
from verifier.release import Release
from verifier.task import Task

def wrong(reference: Reference, task: Task, release: Release) -> None:
    program_task(reference, budgets, "", release.inventory(), user_turns=0)  # HERE
    Attempt(task=reference, harness=harness, mode="rl", temperature=0.0, seed=1)  # HERE
    Interaction(task=reference, record=record, given=(), annotations=())  # HERE
    task.answer  # HERE
    release.tasks[0].canary_of_reference  # HERE

def right(task: Task, release: Release) -> None:
    program_task(task, budgets, "", release.inventory(), user_turns=0)
"""


@pytest.mark.slow
def test_a_reference_where_a_task_is_wanted_is_a_type_error(tmp_path: Path) -> None:
    """The type checker says so, on just the lines that try."""
    declared = (
        "from typing import Any\nbudgets: Any = ...\nharness: Any = ...\nrecord: Any = ...\n"
        + SNIPPET.lstrip()
    )
    (tmp_path / "snippet.py").write_text(declared)
    settings = {"include": ["."], "extraPaths": [str(ROOT)], "venvPath": str(ROOT), "venv": ".venv"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    wrong = {index for index, line in enumerate(declared.splitlines()) if line.endswith("# HERE")}
    assert {entry["range"]["start"]["line"] for entry in found if entry["severity"] == "error"} == wrong


def test_whoever_grades_or_runs_imports_no_references() -> None:
    code = (
        "import sys, verifier.grade, verifier.release, broker.broker, broker.episode, tasks.session;"
        "read = {'verifier.references', 'verifier.comparison', 'verifier.grader_child'};"
        "assert not read & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_graders_process_needs_neither_pydantic_nor_a_room_above() -> None:
    code = (
        "import sys, verifier.grader_child;"
        "rooms = {name.partition('.')[0] for name in sys.modules};"
        "assert not rooms & {'pydantic', 'broker', 'harness_lab', 'rl', 'report', 'tasks', 'flows'}, rooms"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def secret_release(root: Path) -> tuple[Release, dict[str, str]]:
    """A release whose every answer is a word that stands nowhere else; and these words by task."""
    forms = (AnswerFormat.SYMBOL, AnswerFormat.TEXT, AnswerFormat.SET)
    splits: tuple[Split, ...] = ("train", "val", "test")
    answers = {f"t{number:02}": f"zq{secrets.token_hex(8)}" for number in range(24)}
    tasks = [
        a_task(
            id=name, split=splits[number % 3], answer_format=forms[number // 3 % 3], material_group=name,
            prompt=f"Question {number}? Answer with {answer_form(forms[number // 3 % 3])}.",
        )
        for number, name in enumerate(answers)
    ]  # fmt: skip
    references = {name: {"answer": answer} for name, answer in answers.items()}
    release = freeze(
        root / "secret", name="secret", licence="CC0-1.0", sources=[], families={"f": ["s"]}, tasks=tasks,
        references=references,
    )  # fmt: skip
    return release, answers


@contextmanager
def probed(root: Path, decoy: str, *options: str) -> Generator[tuple[int, dict[str, Any]]]:
    command = [sys.executable, "-m", "tests.fixtures.privacy_probe", str(root), *options]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as probe:
        assert probe.stdin is not None
        assert probe.stdout is not None
        probe.stdin.write(decoy + "\n")
        probe.stdin.flush()
        yield probe.pid, json.loads(probe.stdout.readline())
        probe.stdin.close()
        assert probe.wait(timeout=30) == 0


def in_memory(pid: int, words: list[bytes]) -> set[bytes]:
    """Which of the words stand anywhere in the memory of a process."""
    found: set[bytes] = set()
    handle = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, *_ = line.split()
            start, end = (int(part, 16) for part in where.split("-"))
            if not rights.startswith("r") or line.endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                continue
            for at in range(start, end, 1 << 22):
                try:
                    piece = os.pread(handle, min((1 << 22) + 64, end - at), at)
                except OSError:
                    break
                found |= {word for word in words if word in piece}
    finally:
        os.close(handle)
    return found


def test_no_process_of_a_run_opens_or_holds_a_reference_but_the_grader(tmp_path: Path) -> None:
    """Whole episodes: neither their process's memory nor what it opened has an answer or a canary.

    Every frame to a sandbox, every prompt and every record is still in that memory, so none of them has.
    """
    release, answers = secret_release(tmp_path)
    lines = [json.loads(line) for line in release.references_path.read_text().splitlines()]
    private = [word.encode() for line in lines for word in (line["answer"], line["canary"])]
    assert len(set(private)) == 2 * len(answers)
    decoy = f"decoy-{secrets.token_hex(8)}"
    with probed(release.root, decoy) as (pid, told):
        assert told["episodes"] == 32
        assert told["submissions"] >= told["episodes"]
        assert told["opened"] == []
        assert told["grader"] not in (None, pid)
        assert in_memory(pid, [decoy.encode(), *private]) == {decoy.encode()}


def test_a_run_that_read_its_references_would_be_found_out(tmp_path: Path) -> None:
    """The check of the check: the same process, reading them itself."""
    release, answers = secret_release(tmp_path)
    with probed(release.root, "decoy", "disobey") as (pid, told):
        assert str(release.references_path) in told["opened"]
        assert in_memory(pid, [answer.encode() for answer in answers.values()]) != set()


@pytest.mark.parametrize("name", ["tiny", "open-genomics"])
def test_every_private_reference_carries_a_canary_that_nothing_public_has(tmp_path: Path, name: str) -> None:
    bundled = ROOT / "verifier/bundled/open-genomics"
    root = tiny_release(tmp_path).root if name == "tiny" else bundled
    release = Release.load(root)
    lines = [json.loads(line) for line in release.references_path.read_text().splitlines()]
    canaries = [line["canary"] for line in lines]
    assert len(set(canaries)) == len(canaries) == len(release.tasks)
    assert all(canary.startswith("rinr-canary-") for canary in canaries)
    for path in [path for path in root.rglob("*") if path.is_file() and "private" not in path.parts]:
        assert b"rinr-canary-" not in path.read_bytes()
