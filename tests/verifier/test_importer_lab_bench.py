"""LAB-Bench: both layouts, what is public and what withheld, material groups, and every kind of bad row."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.benchmark_files import (
    CANARY,
    DATA,
    change_text,
    lab_row,
    needs_data,
    read_all,
    write_lines,
    write_parquet,
)
from verifier.draft import Draft
from verifier.importers.base import Row
from verifier.importers.lab_bench import ABSTAIN, LabBench
from verifier.layout import ReleaseError
from verifier.task import AnswerFormat

FILE = "DbQA/gene_location_task-v1-public.jsonl"


def one_family(root: Path, *rows: dict[str, Any], file: str = FILE) -> LabBench:
    write_lines(root / file, rows)
    return LabBench(root)


def only(importer: LabBench) -> Row:
    rows, problems = read_all(importer)
    assert problems == []
    (row,) = rows
    return row


def test_a_row_becomes_a_letter_question_with_the_option_to_abstain(tmp_path: Path) -> None:
    row = only(one_family(tmp_path, lab_row("a1")))
    question = row.question
    assert (question.id, question.family, question.subtopic) == ("a1", "DbQA", "gene_location")
    assert sorted(question.options) == sorted(["iron", "gold", "zinc", "lead", ABSTAIN])
    assert question.options["ABCDE".index(row.reference["answer"])] == "iron"
    assert question.answer_format is AnswerFormat.LETTER
    assert question.prompt.startswith("Which metal is in set a1?\nA. ")
    assert (question.canary, question.source) == (CANARY, f"{FILE} row 1")
    assert question.canary not in question.prompt


def test_the_option_to_abstain_can_be_left_out_and_the_release_says_so(tmp_path: Path) -> None:
    write_lines(tmp_path / FILE, [lab_row("a1")])
    importer = LabBench(tmp_path, abstain=False)
    assert ABSTAIN not in only(importer).question.options
    assert any("abstain" in note and "left out" in note for note in importer.notes)


def test_options_lie_as_their_texts_decide_and_the_right_one_everywhere(tmp_path: Path) -> None:
    rows, _ = read_all(one_family(tmp_path, *(lab_row(f"q{n}") for n in range(200))))
    letters = Counter(row.reference["answer"] for row in rows)
    assert set(letters) == set("ABCDE")
    assert max(letters.values()) < 2 * min(letters.values())
    again, _ = read_all(
        one_family(tmp_path, *(lab_row(f"q{n}", distractors=["lead", "gold", "zinc"]) for n in range(200)))
    )
    assert [row.question.options for row in rows] == [row.question.options for row in again]


def test_key_passage_and_sources_are_withheld(tmp_path: Path) -> None:
    row = only(
        one_family(
            tmp_path,
            lab_row("l1", sources=["https://doi.org/10.1/x"], **{"key-passage": "iron is in the set"}),
            file="LitQA2/litqa-v2-public.jsonl",
        )
    )
    assert row.question.family == "LitQA2"
    assert row.reference["withheld"] == {
        "key-passage": "iron is in the set",
        "sources": ["https://doi.org/10.1/x"],
    }
    public = row.question.model_dump_json()
    assert "iron is in the set" not in public
    assert "10.1/x" not in public


def test_a_protocol_is_public_and_in_the_prompt(tmp_path: Path) -> None:
    row = only(
        one_family(
            tmp_path,
            lab_row("p1", protocol="Step 1: heat to 90 C\nStep 2: cool"),
            file="ProtocolQA/protocolqa-v1-public.jsonl",
        )
    )
    assert row.question.prompt.startswith(
        "Protocol:\nStep 1: heat to 90 C\nStep 2: cool\n\nWhich metal is in set p1?\nA. "
    )


def groups(rows: list[Row]) -> list[str]:
    return [row.question.material_group for row in rows]


@pytest.mark.spec("DATA-03")
def test_protocols_that_differ_in_a_step_are_one_material(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(120)]
    changed = [*words[:60], "other", *words[61:]]
    protocols = [" ".join(words), " ".join(changed), " ".join(f"else{n}" for n in range(120)), "short one"]
    rows = [lab_row(f"p{n}", protocol=text) for n, text in enumerate(protocols)]
    made, _ = read_all(one_family(tmp_path, *rows, file="ProtocolQA/protocolqa-v1-public.jsonl"))
    one, two, three, four = groups(made)
    assert one == two
    assert len({one, three, four}) == 3


@pytest.mark.spec("DATA-03")
def test_papers_are_one_material_through_any_shared_source_however_it_is_spelt(tmp_path: Path) -> None:
    sources = [
        ["https://doi.org/10.1/A"],
        ["http://dx.doi.org/10.1/a/", "https://doi.org/10.2/b"],
        ["https://doi.org/10.2/b"],
        ["https://doi.org/10.3/c"],
    ]
    rows = [lab_row(f"l{n}", sources=own) for n, own in enumerate(sources)]
    made, _ = read_all(one_family(tmp_path, *rows, file="LitQA2/litqa-v2-public.jsonl"))
    one, two, three, four = groups(made)
    assert one == two == three != four


@pytest.mark.spec("DATA-03")
def test_database_questions_of_one_entity_are_one_material(tmp_path: Path) -> None:
    rows = [
        lab_row("a", question="At  band 1? "),
        lab_row("b", question="at band 1?"),
        lab_row("c", question="At band 2?"),
    ]
    one, two, three = groups(read_all(one_family(tmp_path, *rows))[0])
    assert one == two != three


@pytest.mark.spec("DATA-03")
def test_variants_of_one_protein_are_one_material_across_subtopics(tmp_path: Path) -> None:
    protein = "".join("ACDEFGHIKLMNPQRSTVWY"[(7 * n + n * n) % 20] for n in range(300))
    other = "".join("ACDEFGHIKLMNPQRSTVWY"[(3 * n * n + 11 * n) % 20] for n in range(300))
    single = [
        lab_row("v1", question=f"benign? <sequence>{protein}</sequence>", ideal="A1G"),
        lab_row("v2", question=f"pathogenic? <sequence>{other}</sequence>", ideal="A1G"),
    ]
    variants = [protein[:at] + "W" + protein[at + 1 :] for at in (10, 100, 200, 290)]
    several = [lab_row("m1", question="Which?", ideal=variants[0], distractors=variants[1:])]
    write_lines(tmp_path / "DbQA/variant_from_sequence_task-v1-public.jsonl", single)
    write_lines(tmp_path / "DbQA/variant_multi_sequence_task-v1-public.jsonl", several)
    one, two, three = groups(read_all(LabBench(tmp_path))[0])
    assert one == three != two


BAD_ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "repeated option": (lab_row("x", distractors=["gold", "Gold "]), "duplicate-options", "same text"),
    "right option repeated": (lab_row("x", distractors=["iron"]), "duplicate-options", "id x"),
    "no canary": (lab_row("x", canary=None), "missing-canary", "no canary"),
    "empty canary": (lab_row("x", canary=""), "missing-canary", "no canary"),
    "no answer": (lab_row("x", ideal=None), "malformed-row", "ideal: Field required"),
    "empty answer": (lab_row("x", ideal=""), "malformed-row", "ideal"),
    "no wrong option": (lab_row("x", distractors=[]), "malformed-row", "distractors"),
    "number for a text": (lab_row("x", question=7), "malformed-row", "question"),
    "too many options": (
        lab_row("x", distractors=[f"d{n}" for n in range(26)]),
        "malformed-row",
        "28 options, at most 26",
    ),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_a_problem_that_names_file_and_row(tmp_path: Path, case: str) -> None:
    bad, kind, why = BAD_ROWS[case]
    rows, problems = read_all(one_family(tmp_path, lab_row("ok"), bad, lab_row("ok2")))
    assert [row.question.id for row in rows] == ["ok", "ok2"]
    (problem,) = problems
    assert (problem.kind, problem.where) == (kind, f"{FILE} row 2")
    assert why in problem.why
    assert "iron" not in problem.why, "a problem holds no answer"


def test_a_protocol_question_without_protocol_is_a_problem(tmp_path: Path) -> None:
    _, problems = read_all(one_family(tmp_path, lab_row("p"), file="ProtocolQA/protocolqa-v1-public.jsonl"))
    assert "without its protocol" in problems[0].why


def test_two_rows_with_one_id_are_refused_by_the_draft(tmp_path: Path) -> None:
    importer = one_family(tmp_path / "source", lab_row("a"), lab_row("a", question="Other?"))
    with pytest.raises(
        ReleaseError, match=rf"{FILE} row 2: a second task with the id 'a'.*--drop duplicate-id"
    ):
        Draft.create(tmp_path / "draft").add(importer)


BAD_BYTES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "the file is empty"),
    "only white space": (lambda _: b"\n \n", "the file is empty"),
    "not UTF-8": (lambda text: text + b'{"id": "\xff"}\n', "row 2: no JSON object (str is not valid UTF-8"),
    "cut off": (lambda text: text[:-20], "row 1: no JSON object (unexpected end of data"),
    "no object": (lambda text: text + b"[1]\n", "row 2: a JSON value, but no object"),
    "unknown field": (lambda text: text.replace(b'"tag"', b'"tags"'), "row 1: unknown field 'tags'"),
}


@pytest.mark.parametrize("case", BAD_BYTES)
def test_a_bad_file_ends_the_import_with_one_line(tmp_path: Path, case: str) -> None:
    change, said = BAD_BYTES[case]
    importer = one_family(tmp_path / "source", lab_row("a"))
    change_text(tmp_path / "source" / FILE, change)
    with pytest.raises(ReleaseError) as caught:
        Draft.create(tmp_path / "draft").add(importer)
    assert str(caught.value).startswith(FILE)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_crlf_change_nothing(tmp_path: Path) -> None:
    plain = read_all(one_family(tmp_path, lab_row("a"), lab_row("b")))
    change_text(tmp_path / FILE, lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    assert read_all(LabBench(tmp_path)) == plain


def test_splits_and_open_answers_beside_the_files_are_no_tasks(tmp_path: Path) -> None:
    write_lines(tmp_path / "ProtocolQA/protocolqa-v1-public.jsonl", [lab_row("p", protocol="Step 1")])
    write_lines(tmp_path / "ProtocolQA/protocolqa-v1-openanswer.jsonl", [{"id": "o", "mcqid": "p"}])
    (tmp_path / "ProtocolQA/protocolqa-v1-splits.json").write_text('{"public": ["p"]}')
    (tmp_path / "SeqQA").mkdir()
    importer = LabBench(tmp_path)
    assert only(importer).split is None
    assert [path.name for path in importer.files()] == ["protocolqa-v1-public.jsonl"]
    assert any("open-answer" in note for note in importer.notes)
    assert any("SeqQA" in note for note in importer.notes)


def test_a_folder_of_another_kind_or_an_unknown_subtask_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="none of the folders DbQA, LitQA2, ProtocolQA is there"):
        LabBench(tmp_path)
    (tmp_path / "DbQA").mkdir()
    with pytest.raises(ReleaseError, match=r"no file \*-public\.jsonl or \*\.parquet"):
        LabBench(tmp_path)
    importer = one_family(tmp_path, lab_row("a"), file="DbQA/gene_colour_task-v1-public.jsonl")
    with pytest.raises(ReleaseError, match="'gene_colour_task-v1-public' is no known subtask; known are dga"):
        list(importer.rows())


def test_the_folder_of_one_family_is_enough(tmp_path: Path) -> None:
    write_lines(tmp_path / FILE, [lab_row("a")])
    row = only(LabBench(tmp_path / "DbQA"))
    assert (row.question.family, row.where) == ("DbQA", "gene_location_task-v1-public.jsonl row 1")


def test_parquet_of_the_data_set_page_gives_the_tasks_of_the_json_lines(tmp_path: Path) -> None:
    lines, table = tmp_path / "lines", tmp_path / "table"
    rows = [lab_row("a"), lab_row("b")]
    literature = [lab_row("l", sources=["https://doi.org/10.1/x"], **{"key-passage": "k"})]
    write_lines(lines / FILE, rows)
    write_lines(lines / "LitQA2/litqa-v2-public.jsonl", literature)
    named = [row | {"subtask": "gene_location_task-v1-public"} for row in rows]
    write_parquet(table / "DbQA/train-00000-of-00001.parquet", named)
    page = [row | {"is_opensource": True, "subtask": "litqa-v2-public"} for row in literature]
    write_parquet(table / "LitQA2/train-00000-of-00001.parquet", page)

    def stated(root: Path) -> list[tuple[Any, Any]]:
        return [
            (row.question.model_dump(exclude={"source"}), row.reference)
            for row in read_all(LabBench(root))[0]
        ]

    assert stated(lines) == stated(table)
    assert read_all(LabBench(table))[0][1].where == "DbQA/train-00000-of-00001.parquet row 2"


BAD_PARQUET: dict[str, tuple[Callable[[Path], object], str]] = {
    "no subtask": (lambda path: write_parquet(path, [lab_row("a")]), "row 1: no subtask"),
    "unknown column": (
        lambda path: write_parquet(path, [lab_row("a", colour="red")]),
        "unknown field 'colour'",
    ),
    "no column": (
        lambda path: write_parquet(path, [{"id": "a", "question": "q"}]),
        "no column 'distractors'",
    ),
    "no Parquet": (lambda path: path.write_bytes(b"PAR?"), "no Parquet file"),
    "empty": (lambda path: path.write_bytes(b""), "no Parquet file"),
}


@pytest.mark.parametrize("case", BAD_PARQUET)
def test_a_bad_parquet_file_is_refused_with_one_line(tmp_path: Path, case: str) -> None:
    write, said = BAD_PARQUET[case]
    (tmp_path / "DbQA").mkdir()
    write(tmp_path / "DbQA" / "train.parquet")
    with pytest.raises(ReleaseError) as caught:
        list(LabBench(tmp_path).rows())
    assert str(caught.value).startswith("DbQA/train.parquet")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_twice_as_lines_and_as_parquet_are_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / FILE, [lab_row("a")])
    write_parquet(tmp_path / "DbQA/train.parquet", [lab_row("a")])
    with pytest.raises(ReleaseError, match="keep JSON lines or Parquet"):
        LabBench(tmp_path)


def test_without_pyarrow_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "DbQA/train.parquet", [lab_row("a", subtask="dga_task-v1-public")])

    def missing(name: str, package: str | None = None) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("verifier.importers.parquet.importlib.import_module", missing)
    with pytest.raises(
        ReleaseError, match=r"DbQA/train\.parquet: Parquet needs pyarrow; pip install 'rinr\[parquet\]'"
    ):
        list(LabBench(tmp_path).rows())


@needs_data
@pytest.mark.spec("DATA-01")
def test_real_files_520_199_108_and_the_two_rows_that_repeat_an_option(tmp_path: Path) -> None:
    source = LabBench(DATA / "LAB-Bench")
    rows, problems = read_all(source)
    assert Counter(row.question.family for row in rows) == {"DbQA": 520, "LitQA2": 197, "ProtocolQA": 108}
    assert [(problem.kind, problem.where) for problem in problems] == [
        ("duplicate-options", "LitQA2/litqa-v2-public.jsonl row 4"),
        ("duplicate-options", "LitQA2/litqa-v2-public.jsonl row 161"),
    ]
    by_subtopic = Counter(row.question.subtopic for row in rows if row.question.family == "DbQA")
    assert sorted(by_subtopic.values()) == [40] * 7 + [80] * 3
    draft = Draft.create(tmp_path / "draft")
    with pytest.raises(ReleaseError, match=r"litqa-v2-public\.jsonl row 4: two options have the same text"):
        draft.add(source)
    assert draft.task_ids() == set()
    record = draft.add(source, ("duplicate-options",))
    assert (record.rows, record.tasks, len(record.dropped)) == (827, 825, 2)
    assert draft.header.no_training


@needs_data
@pytest.mark.spec("DATA-03")
def test_real_protocol_questions_share_25_protocols_though_no_two_texts_are_equal() -> None:
    rows, _ = read_all(LabBench(DATA / "LAB-Bench" / "ProtocolQA"))
    by_group: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        by_group[row.question.material_group].append(row.question.prompt)
    assert len(by_group) == 25
    assert sorted(map(len, by_group.values()))[-4:] == [10, 11, 16, 16]


@needs_data
def test_real_rows_as_parquet_are_the_same_tasks(tmp_path: Path) -> None:
    for folder in ("DbQA", "LitQA2", "ProtocolQA"):
        rows = [
            json.loads(line) | {"subtask": path.stem}
            for path in sorted((DATA / "LAB-Bench" / folder).glob("*-public.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        write_parquet(tmp_path / folder / "train-00000-of-00001.parquet", rows)

    def stated(root: Path) -> list[tuple[Any, Any]]:
        return [(r.question.model_dump(exclude={"source"}), r.reference) for r in read_all(LabBench(root))[0]]

    assert stated(tmp_path) == stated(DATA / "LAB-Bench")
