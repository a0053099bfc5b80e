"""Drafts and our own JSON lines: what is gathered, what is refused, and that nothing is lost (DATA-02)."""

import json
from pathlib import Path
from typing import Any

import pytest

from verifier.draft import REFERENCES, SPLITS, TASKS, Draft
from verifier.freeze import Declared, freeze_draft
from verifier.importers.base import MAX_ROW_BYTES
from verifier.importers.jsonl import JsonLines
from verifier.layout import ReleaseError
from verifier.release import Release

ROWS: list[dict[str, Any]] = [
    {"id": "q3", "family": "m", "question": "Symbol of iron?", "format": "symbol", "answer": "Fe"},
    {
        "id": "q1",
        "family": "m",
        "question": "Which is liquid?",
        "answer": "mercury",
        "options": ["tin", "iron"],
    },
    {"id": "q2", "family": "m", "question": "Where does tin melt?", "format": "number", "answer": "232"},
]
DEALT: list[dict[str, Any]] = [
    row | {"split": split} for row, split in zip(ROWS, ("train", "val", "test"), strict=True)
]


def written(folder: Path, rows: list[dict[str, Any]], name: str = "tasks.jsonl") -> JsonLines:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return JsonLines(folder / name, licence="CC0-1.0")


def state(draft: Draft) -> dict[str, bytes]:
    return {
        path.relative_to(draft.root).as_posix(): path.read_bytes()
        for path in draft.root.rglob("*")
        if path.is_file()
    }


@pytest.mark.spec("DATA-01", "DATA-02")
def test_lines_become_a_release_that_loads(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path / "draft")
    record = draft.add(written(tmp_path, DEALT))
    assert (record.rows, record.tasks, record.dropped) == (3, 3, ())
    assert list(record.files) == ["tasks.jsonl"]
    header = freeze_draft(draft, tmp_path / "out", Declared(name="mine"))
    release = Release.load(tmp_path / "out")
    assert header.digest == release.digest
    assert [(task.id, task.split) for task in release.tasks] == [
        ("q1", "val"),
        ("q2", "test"),
        ("q3", "train"),
    ]
    assert release.header.imports == (record,)
    assert release.licence == "CC0-1.0"
    assert release.task("q3").source == "tasks.jsonl line 1"
    assert "<answer>symbol</answer>" in release.task("q3").prompt


@pytest.mark.spec("DATA-02")
def test_options_are_ordered_by_digest_and_the_answer_names_the_right_one(tmp_path: Path) -> None:
    rows = [
        {"id": f"q{i}", "question": "?", "answer": "right", "options": ["a", "b", "c"], "split": "train"}
        for i in range(40)
    ]
    draft = Draft.create(tmp_path / "draft")
    draft.add(written(tmp_path, rows))
    letters = [json.loads(line)["answer"] for line in (draft.root / REFERENCES).read_text().splitlines()]
    for question, letter in zip(draft.questions(), letters, strict=True):
        assert question.options["ABCD".index(letter)] == "right"
    assert set(letters) == set("ABCD")


@pytest.mark.spec("DATA-02")
def test_equal_sources_give_an_equal_fingerprint_and_digest(tmp_path: Path) -> None:
    found: list[tuple[str, str]] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        draft = Draft.create(tmp_path / name / "draft")
        record = draft.add(written(tmp_path / name, DEALT))
        header = freeze_draft(draft, tmp_path / name / "out", Declared(name="mine"))
        found.append((record.fingerprint, header.digest))
    assert found[0] == found[1]


BAD_LINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "no JSON": ("{", ("line 2", "JSON")),
    "a list": ("[1]", ("line 2",)),
    "an unknown field": ('{"id":"x","question":"?","answer":"SECRET","colour":1}', ("line 2", "colour")),
    "no answer": ('{"id":"x","question":"?"}', ("line 2", "answer")),
    "an empty answer": ('{"id":"x","question":"?","answer":""}', ("line 2", "answer")),
    "a wrong format": ('{"id":"x","question":"?","answer":"SECRET","format":"poem"}', ("line 2", "format")),
    "a negative tolerance": (
        '{"id":"x","question":"?","answer":"SECRET","absolute":-1}',
        ("line 2", "absolute"),
    ),
    "an endless tolerance": (
        '{"id":"x","question":"?","answer":"SECRET","relative":1e999}',
        ("line 2", "relative"),
    ),
    "an unknown split": ('{"id":"x","question":"?","answer":"SECRET","split":"dev"}', ("line 2", "split")),
    "two equal options": (
        '{"id":"x","question":"?","answer":"SECRET","options":["a","A "]}',
        ("line 2", "same text", "--drop duplicate-options"),
    ),
    "the answer among the wrong options": (
        '{"id":"x","question":"?","answer":"SECRET","options":["secret"]}',
        ("line 2", "same text"),
    ),
    "letters without options": (
        '{"id":"x","question":"?","answer":"SECRET","format":"letter"}',
        ("line 2", "options"),
    ),
    "options without letters": (
        '{"id":"x","question":"?","answer":"SECRET","format":"number","options":["1"]}',
        ("line 2", "letter"),
    ),
    "too many options": (
        json.dumps({"id": "x", "question": "?", "answer": "SECRET", "options": [str(i) for i in range(26)]}),
        ("line 2", "27 options"),
    ),
    "a second id": ('{"id":"q3","question":"?","answer":"SECRET"}', ("line 2", "'q3'", "duplicate-id")),
    "an id with a slash": ('{"id":"a/b","question":"?","answer":"SECRET"}', ("line 2", "plain file name")),
    "not UTF-8": ('{"id":"\udcff","question":"?","answer":"SECRET"}', ("line 2",)),
    "a file that is missing": (
        '{"id":"x","question":"?","answer":"SECRET","files":["gone.csv"]}',
        ("line 2", "gone.csv", "No such file"),
    ),
    "a file outside": (
        '{"id":"x","question":"?","answer":"SECRET","files":["../../etc/passwd"]}',
        ("line 2", "passwd", "beside"),
    ),
    "a line that is too long": ("x" * (MAX_ROW_BYTES + 5), ("line 2", "longer than 8 MiB")),
}


@pytest.mark.spec("DATA-02")
@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_bad_line_ends_the_import_and_the_draft_is_as_before(tmp_path: Path, kind: str) -> None:
    line, parts = BAD_LINES[kind]
    draft = Draft.create(tmp_path / "draft")
    first = [{"id": "before", "question": "?", "answer": "yes", "split": "train"}]
    draft.add(written(tmp_path, first, "first.jsonl"))
    before = state(draft)
    source = tmp_path / "tasks.jsonl"
    lines = [json.dumps(ROWS[0]), line, json.dumps(ROWS[1])]
    source.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(ReleaseError) as caught:
        Draft(draft.root).add(JsonLines(source, licence="CC0-1.0"))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    assert "SECRET" not in message
    assert state(Draft(draft.root)) == before


@pytest.mark.spec("DATA-02")
def test_a_problem_is_left_out_only_under_its_flag_and_written_into_the_release(tmp_path: Path) -> None:
    rows = [*DEALT, {"id": "twice", "question": "?", "answer": "a", "options": ["b", "B"], "split": "train"}]
    draft = Draft.create(tmp_path / "draft")
    with pytest.raises(ReleaseError, match=r"line 4.*--drop duplicate-options"):
        draft.add(written(tmp_path, rows), ("duplicate-id",))
    draft.add(written(tmp_path, rows), ("duplicate-options",))
    freeze_draft(draft, tmp_path / "out", Declared(name="mine"))
    (record,) = Release.load(tmp_path / "out").header.imports
    assert [(row.kind, row.where) for row in record.dropped] == [("duplicate-options", "tasks.jsonl line 4")]
    assert (record.rows, record.tasks) == (4, 3)


@pytest.mark.spec("DATA-02")
def test_files_of_a_task_are_copied_and_listed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("x\n1\n")
    draft = Draft.create(tmp_path / "draft")
    draft.add(written(tmp_path, [DEALT[0] | {"files": ["data/a.csv"]}, *DEALT[1:]]))
    freeze_draft(draft, tmp_path / "out", Declared(name="mine"))
    release = Release.load(tmp_path / "out")
    assets = release.assets("q3")
    assert release.task("q3").files == ("a.csv",)
    assert assets is not None
    assert (assets / "a.csv").read_text() == "x\n1\n"


def test_a_byte_order_mark_and_empty_lines_are_passed_over(tmp_path: Path) -> None:
    source = tmp_path / "tasks.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + b"\r\n\n".join(json.dumps(row).encode() for row in DEALT))
    assert Draft.create(tmp_path / "draft").add(JsonLines(source, licence="CC0-1.0")).tasks == 3


@pytest.mark.spec("DATA-02")
def test_tasks_without_a_split_are_not_frozen(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path / "draft")
    draft.add(written(tmp_path, [*DEALT[:2], ROWS[2]]))
    with pytest.raises(ReleaseError, match=r"1 task has no split, e.g. 'q2'; .*release split"):
        freeze_draft(draft, tmp_path / "out", Declared(name="mine"))
    draft.set_splits({**draft.splits(), "q2": "test", "ghost": "val"}, "by hand")
    with pytest.raises(ReleaseError, match="'ghost'"):
        freeze_draft(draft, tmp_path / "out", Declared(name="mine"))
    assert not (tmp_path / "out").exists()
    draft.set_splits({"q1": "train", "q2": "test", "q3": "val"}, "by hand")
    assert freeze_draft(draft, tmp_path / "out", Declared(name="mine")).split_rule == "by hand"


def test_a_folder_that_is_no_draft_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ReleaseError, match="is not a draft"):
        Draft.create(tmp_path)
    with pytest.raises(ReleaseError, match="is not a draft"):
        Draft(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def test_a_draft_header_of_another_kind_is_refused_in_one_line(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path / "draft")
    (draft.root / "draft.json").write_text('{"format": "rinr-draft", "version": 2}')
    with pytest.raises(ReleaseError, match=r"draft\.json: version") as caught:
        Draft(draft.root)
    assert "\n" not in str(caught.value)


@pytest.mark.spec("EVID-02")
def test_the_public_half_of_a_draft_holds_no_answer(tmp_path: Path) -> None:
    rows = [
        row | {"answer": f"SECRET{index}", "format": "text"} for index, row in enumerate((ROWS[0], ROWS[2]))
    ]
    draft = Draft.create(tmp_path / "draft")
    draft.add(written(tmp_path, rows))
    for name in (TASKS, SPLITS, "draft.json"):
        assert "SECRET" not in (draft.root / name).read_text()
    assert "SECRET0" in (draft.root / REFERENCES).read_text()
