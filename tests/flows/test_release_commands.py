"""`rinr release ...` as a user calls it: from a file to a release, and one line for each mistake."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app

RUNNER = CliRunner()
LINES = [
    {"id": "q1", "question": "Symbol of iron?", "format": "symbol", "answer": "Fe", "split": "train"},
    {"id": "q2", "question": "Which is liquid?", "answer": "mercury", "options": ["tin"], "split": "val"},
    {"id": "q3", "question": "Melting point of tin?", "format": "number", "answer": "232", "split": "test"},
]


def call(*arguments: str | Path) -> Result:
    return RUNNER.invoke(app, ["release", *map(str, arguments)])


def lines_file(folder: Path, *more: dict[str, object]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (*LINES, *more)), encoding="utf-8")
    return path


@pytest.mark.spec("DATA-01", "DATA-02")
def test_from_a_file_to_a_release_in_two_commands(tmp_path: Path) -> None:
    draft, out = tmp_path / "draft", tmp_path / "mine"
    gathered = call("import", "jsonl", lines_file(tmp_path), "--licence", "CC-BY-4.0", "--into", draft)
    assert gathered.exit_code == 0, gathered.output
    assert "3 tasks from 3 rows" in gathered.output
    assert "fingerprint sha256:" in gathered.output
    frozen = call("freeze", draft, out, "--note", "by hand")
    assert frozen.exit_code == 0, frozen.output
    verified = call("verify", out)
    assert verified.exit_code == 0
    assert "ok: 1 train, 1 val, 1 test; licence CC-BY-4.0" in verified.output
    shown = call("show", out)
    assert "note: by hand" in shown.output
    assert "import jsonl: 3 tasks of 3 rows" in shown.output
    assert "Fe" not in shown.output


def test_a_draft_is_shown_before_it_has_splits(tmp_path: Path) -> None:
    more: dict[str, object] = {"id": "q4", "question": "?", "answer": "a"}
    call("import", "jsonl", lines_file(tmp_path, more), "--licence", "CC0-1.0", "--into", tmp_path / "draft")
    shown = call("show", tmp_path / "draft")
    assert shown.exit_code == 0
    assert "4 tasks, 3 with a split" in shown.output
    assert "no split" in shown.output
    frozen = call("freeze", tmp_path / "draft", tmp_path / "out")
    assert frozen.exit_code == 4
    assert "1 task has no split, e.g. 'q4'" in frozen.output


@pytest.mark.spec("DATA-02")
def test_a_dropped_row_is_said_aloud(tmp_path: Path) -> None:
    source = lines_file(tmp_path, {"id": "q1", "question": "again?", "answer": "a"})
    arguments = ("import", "jsonl", source, "--licence", "CC0-1.0", "--into", tmp_path / "draft")
    refused = call(*arguments)
    assert refused.exit_code == 4
    assert "line 4" in refused.output
    assert "--drop duplicate-id" in refused.output
    taken = call(*arguments, "--drop", "duplicate-id")
    assert taken.exit_code == 0
    assert "left out: tasks.jsonl line 4" in taken.output
    assert "3 tasks from 4 rows of jsonl, 1 left out" in taken.output


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("verify", "nothing-here"), 4, "no release 'nothing-here'"),
        (("show", "nothing-here"), 4, "no release 'nothing-here'"),
        (("freeze", "nothing-here", "out"), 4, "is not a draft"),
        (("import", "jsonl", "no-file", "--licence", "x", "--into", "d"), 4, "no-file: no such file"),
        (("import", "jsonl", "no-file", "--licence", "x", "--into", "d", "--drop", "all"), 2, "no such kind"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == code
    assert part in result.output
    # A value that an option does not take comes with the usage line above, as everywhere on a command line.
    assert part in result.output.strip().splitlines()[-1]
    assert len(result.output.strip().splitlines()) == (4 if code == 2 else 1)
    assert not (tmp_path / "out").exists()
