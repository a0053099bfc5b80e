"""Biomni's GWAS tasks: benchmark folder and Eval1, labels and candidates, and every kind of bad row."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.benchmark_files import (
    DATA,
    change_text,
    needs_data,
    read_all,
    write_parquet,
    write_table,
)
from verifier.draft import Draft
from verifier.importers.biomni import Biomni
from verifier.layout import ReleaseError
from verifier.task import AnswerFormat

QUESTIONS = "gwas_causal_gene/gwas_catalog_step2.for_llm.tsv"
LABELS = "gwas_causal_gene/gwas_catalog_step2.labels"
VARIANTS = "gwas_variant_prioritization/gwas_variant_prioritization_questions.csv"
QUESTION_HEADER = ("row_number", "description", "symbol_gene_string", "ensembl_gene_string")
LOCI = [
    ("1", "Height", "{FEA},{CUA},{AGA}", "{E1},{E2},{E3}"),
    ("2", "Weight", "{AGA},{AUA}", "{E3},{E4}"),
    ("3", "Height", "{ZNA},{PBA}", "{E5},{E6}"),
]
GENES = [("CUA", "E2"), ("AUA", "E4"), ("zna", "E5")]


def gene_folder(root: Path, loci: Any = LOCI, labels: Any = GENES) -> Biomni:
    write_table(root / QUESTIONS, QUESTION_HEADER, loci)
    write_table(root / LABELS, ("symbol", "gene"), labels)
    return Biomni(root)


def variant_prompt(trait: str = "Height", variants: str = "rs12, rs34, rs56") -> str:
    return f"Identify the variant. \nGWAS phenotype: {trait}\nVariants: {variants}\n"


def variant_folder(root: Path, *rows: tuple[str, str, str]) -> Biomni:
    write_table(root / VARIANTS, ("task", "prompt", "answer"), rows, ",")
    return Biomni(root)


def test_a_locus_becomes_a_symbol_question_in_our_own_words(tmp_path: Path) -> None:
    rows, problems = read_all(gene_folder(tmp_path))
    assert problems == []
    question = rows[0].question
    assert (question.id, question.family, question.subtopic) == (
        "gwas_catalog:1",
        "GWAS",
        "causal_gene_gwas_catalog",
    )
    assert question.answer_format is AnswerFormat.SYMBOL
    assert "trait: Height\n" in question.prompt
    assert "Genes in the locus: FEA, CUA, AGA\n" in question.prompt
    assert rows[0].reference == {"answer": "CUA"}
    assert rows[0].where == f"{QUESTIONS} row 1"


def test_a_variant_keeps_its_source_s_prompt_and_is_an_rsid_question(tmp_path: Path) -> None:
    row = read_all(variant_folder(tmp_path, ("gwas_variant_prioritization", variant_prompt(), "rs34")))[0][0]
    assert row.question.prompt.startswith(variant_prompt().strip())
    assert (row.question.id, row.question.subtopic) == ("variant:1", "variant_prioritization")
    assert (row.question.answer_format, row.reference) == (AnswerFormat.RSID, {"answer": "rs34"})


@pytest.mark.spec("DATA-03")
def test_loci_that_share_a_gene_are_one_material_and_the_label_is_not_in_its_name(tmp_path: Path) -> None:
    rows, _ = read_all(gene_folder(tmp_path))
    one, two, three = (row.question.material_group for row in rows)
    assert one == two != three
    swapped, _ = read_all(gene_folder(tmp_path, labels=[("FEA", "E1"), ("AGA", "E3"), ("PBA", "E6")]))
    assert [row.question.material_group for row in swapped] == [one, two, three]


@pytest.mark.spec("DATA-03")
def test_variant_questions_of_one_trait_are_one_material(tmp_path: Path) -> None:
    task = "gwas_variant_prioritization"
    prompts = [variant_prompt("Height"), variant_prompt("height ", "rs7, rs8"), variant_prompt("Weight")]
    made, _ = read_all(
        variant_folder(tmp_path, *((task, p, "rs8" if "rs8" in p else "rs12") for p in prompts))
    )
    one, two, three = (row.question.material_group for row in made)
    assert one == two != three


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        ({"labels": [("GOLD", "E2"), *GENES[1:]]}, "label-outside-candidates", "none of the 3 candidates"),
        ({"loci": [("1", "Height", "", ""), *LOCI[1:]]}, "label-outside-candidates", "none of the 0"),
        ({"loci": [("1", " ", *LOCI[0][2:]), *LOCI[1:]]}, "malformed-row", "the trait is empty"),
        ({"labels": [("", "E2"), *GENES[1:]]}, "malformed-row", "the label is empty"),
        (
            {"loci": [("7", *LOCI[0][1:]), *LOCI[1:]]},
            "malformed-row",
            "row_number is '7'; rows must be in order",
        ),
        ({"loci": [("1", "Height", "{CUA}"), *LOCI[1:]]}, "malformed-row", "3 columns, and the header has 4"),
    ],
)
def test_a_bad_locus_is_a_problem_that_names_file_and_row(
    tmp_path: Path, change: dict[str, Any], kind: str, why: str
) -> None:
    rows, problems = read_all(gene_folder(tmp_path, **change))
    assert [row.question.id for row in rows] == ["gwas_catalog:2", "gwas_catalog:3"]
    (problem,) = problems
    assert (problem.kind, problem.where) == (kind, f"{QUESTIONS} row 1")
    assert why in problem.why
    assert "GOLD" not in problem.why, "a problem holds no answer"


@pytest.mark.parametrize(
    ("row", "kind", "why"),
    [
        (
            ("gwas_variant_prioritisation", variant_prompt(), "rs12"),
            "malformed-row",
            "task is 'gwas_variant_prioritisation'",
        ),
        (
            ("gwas_variant_prioritization", variant_prompt(), "rs99"),
            "label-outside-candidates",
            "none of the 3",
        ),
        (("gwas_variant_prioritization", variant_prompt(), "RS12"), "malformed-row", "no rsID"),
        (
            ("gwas_variant_prioritization", variant_prompt(variants="rs12, x"), "rs12"),
            "malformed-row",
            "no rsID",
        ),
        (("gwas_variant_prioritization", "Variants: rs12", "rs12"), "malformed-row", "'GWAS phenotype:'"),
        (
            ("gwas_variant_prioritization", "GWAS phenotype: Height", "rs12"),
            "malformed-row",
            "a list of candidates",
        ),
    ],
)
def test_a_bad_variant_row_is_a_problem_that_names_file_and_row(
    tmp_path: Path, row: tuple[str, str, str], kind: str, why: str
) -> None:
    good = ("gwas_variant_prioritization", variant_prompt(), "rs12")
    rows, problems = read_all(variant_folder(tmp_path, good, row))
    assert len(rows) == 1
    assert [(problem.kind, problem.where) for problem in problems] == [(kind, f"{VARIANTS} row 2")]
    assert why in problems[0].why


BAD_TABLES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "empty": (QUESTIONS, lambda _: b"", "the file is empty; it should have the columns row_number"),
    "unknown column": (
        QUESTIONS,
        lambda t: t.replace(b"description", b"trait"),
        "header: unknown field 'trait'",
    ),
    "missing column": (
        LABELS,
        lambda t: t.replace(b'"symbol"\t"gene"', b'"symbol"'),
        "header: no column 'gene'",
    ),
    "column twice": (
        LABELS,
        lambda t: t.replace(b'"symbol"', b'"gene"\t"symbol"', 1),
        "header: a column twice",
    ),
    "not UTF-8": (
        QUESTIONS,
        lambda t: t.replace(b"Weight", b"W\xe9ight"),
        "line 3: byte 7 (0xe9) is not UTF-8",
    ),
    "quote that does not close": (QUESTIONS, lambda t: t[:-3], "row 3: unexpected end of data"),
    "labels too few": (LABELS, lambda t: t[: t.rindex(b'"zna"')], f"row 3: {LABELS} has no row 3"),
    "labels too many": (LABELS, lambda t: t + b'"X"\t"E"\n', f"row 4: {QUESTIONS} has no row 4"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_ends_the_import_with_one_line(tmp_path: Path, case: str) -> None:
    file, change, said = BAD_TABLES[case]
    importer = gene_folder(tmp_path / "source")
    change_text(tmp_path / "source" / file, change)
    with pytest.raises(ReleaseError) as caught:
        Draft.create(tmp_path / "draft").add(importer)
    assert said in str(caught.value)
    assert str(caught.value).startswith(("gwas_causal_gene/",))
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_crlf_change_nothing(tmp_path: Path) -> None:
    plain = read_all(gene_folder(tmp_path))
    for file in (QUESTIONS, LABELS):
        change_text(tmp_path / file, lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    assert read_all(Biomni(tmp_path)) == plain


def test_an_unknown_source_or_missing_labels_or_nothing_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="neither gwas_causal_gene/"):
        Biomni(tmp_path)
    write_table(tmp_path / QUESTIONS, QUESTION_HEADER, LOCI)
    with pytest.raises(ReleaseError, match=r"gwas_catalog_step2\.labels: no such file"):
        Biomni(tmp_path)
    (tmp_path / QUESTIONS).rename(tmp_path / QUESTIONS.replace("gwas_catalog", "gwascatalog"))
    with pytest.raises(ReleaseError, match="'gwascatalog' is no known source; known are gwas_catalog"):
        Biomni(tmp_path)


GENE_PROMPT = "Identify the causal gene.\nGWAS phenotype: Height\nGenes in locus: {FEA},{CUA}\n"


def eval1_row(task: str, instance: int, prompt: str, answer: str | None, **more: Any) -> dict[str, Any]:
    return {
        "instance_id": instance,
        "task_name": task,
        "task_instance_id": instance,
        "prompt": prompt,
        "answer": answer,
        "split": "val",
    } | more


EVAL1 = [
    eval1_row("gwas_causal_gene_pharmaprojects", 3, GENE_PROMPT, "CUA"),
    eval1_row("gwas_causal_gene_opentargets", 4, GENE_PROMPT, "FEA"),
    eval1_row("gwas_causal_gene_gwas_catalog", 5, GENE_PROMPT, "FEA"),
    eval1_row("gwas_variant_prioritization", 6, variant_prompt(), "rs12"),
    eval1_row("lab_bench_dbqa", 7, "Which?", "A"),
]


@pytest.mark.spec("DATA-01")
def test_eval1_gives_its_four_gwas_tasks_whatever_its_own_split(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "data" / "eval1.parquet", EVAL1)
    rows, problems = read_all(Biomni(path))
    assert problems == []
    assert [(row.question.id, row.question.subtopic) for row in rows] == [
        ("gwas_causal_gene_pharmaprojects:3", "causal_gene_pharmaprojects"),
        ("gwas_causal_gene_opentargets:4", "causal_gene_opentargets"),
        ("gwas_causal_gene_gwas_catalog:5", "causal_gene_gwas_catalog"),
        ("gwas_variant_prioritization:6", "variant_prioritization"),
    ]
    assert {row.split for row in rows} == {None}
    assert rows[0].question.prompt.startswith(GENE_PROMPT.strip())
    assert (rows, problems) == read_all(Biomni(path.parent))
    loci, _ = read_all(
        gene_folder(tmp_path / "folder", [("1", "Weight", "{CUA},{NIA}", "{E2},{E9}")], [("NIA", "E9")])
    )
    assert loci[0].question.material_group != rows[0].question.material_group, (
        "named by the genes of one import"
    )


@pytest.mark.parametrize(
    ("row", "kind", "why"),
    [
        (eval1_row("gwas_causal_gene_opentarget", 1, GENE_PROMPT, "FEA"), "malformed-row", "task_name is"),
        (
            eval1_row("gwas_causal_gene_opentargets", 1, GENE_PROMPT, "AUA"),
            "label-outside-candidates",
            "of the 2",
        ),
        (
            eval1_row("gwas_causal_gene_opentargets", 1, "Genes in locus: {A}", "A"),
            "malformed-row",
            "prompt has not",
        ),
        (
            eval1_row("gwas_causal_gene_opentargets", 1, GENE_PROMPT, "FEA", task_instance_id=None),
            "malformed-row",
            "empty",
        ),
        (
            eval1_row("gwas_variant_prioritization", 1, variant_prompt(), None),
            "malformed-row",
            "no text",
        ),
    ],
)
def test_a_bad_row_of_eval1_is_a_problem(tmp_path: Path, row: dict[str, Any], kind: str, why: str) -> None:
    path = write_parquet(tmp_path / "eval1.parquet", [*EVAL1, row])
    rows, problems = read_all(Biomni(path))
    assert len(rows) == 4
    assert [(problem.kind, problem.where) for problem in problems] == [(kind, "eval1.parquet row 6")]
    assert why in problems[0].why


def test_eval1_without_a_gwas_task_or_with_other_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="no row of a GWAS task"):
        list(Biomni(write_parquet(tmp_path / "a.parquet", EVAL1[4:])).rows())
    with pytest.raises(ReleaseError, match=r"b\.parquet: unknown field 'extra'"):
        list(Biomni(write_parquet(tmp_path / "b.parquet", [EVAL1[0] | {"extra": 1}])).rows())
    with pytest.raises(ReleaseError, match=r"c\.parquet: no column 'answer'"):
        list(
            Biomni(
                write_parquet(
                    tmp_path / "c.parquet", [{"task_name": "x", "task_instance_id": 1, "prompt": ""}]
                )
            ).rows()
        )
    with pytest.raises(ReleaseError, match=r"d\.parquet: no such file or folder"):
        list(Biomni(tmp_path / "d.parquet").rows())


@needs_data
@pytest.mark.spec("DATA-01")
def test_real_files_1492_loci_215_variants_and_13_labels_outside_their_candidates(tmp_path: Path) -> None:
    source = Biomni(DATA / "biomni-dataset")
    rows, problems = read_all(source)
    assert len(rows) + len(problems) == 1492 + 215
    assert Counter(row.question.subtopic for row in rows) == {
        "causal_gene_gwas_catalog": 641,
        "causal_gene_opentargets": 838,
        "variant_prioritization": 215,
    }
    assert {problem.kind for problem in problems} == {"label-outside-candidates"}
    outside = [55, 59, 136, 214, 698, 703, 705, 706, 708, 733, 743, 782, 785]
    assert [problem.where for problem in problems] == [
        f"gwas_causal_gene/opentargets_step2.for_llm.tsv row {number}" for number in outside
    ]
    draft = Draft.create(tmp_path / "draft")
    with pytest.raises(ReleaseError, match=r"opentargets_step2\.for_llm\.tsv row 55: .*--drop label-outside"):
        draft.add(source)
    record = draft.add(source, ("label-outside-candidates",))
    assert (record.tasks, len(record.dropped)) == (1694, 13)
    assert draft.header.licences == ("Apache-2.0",)
    assert not draft.header.no_training
