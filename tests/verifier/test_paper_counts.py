"""The paper's collection in numbers: families, the difference table, who may bear its name (DATA-01)."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.fixtures.benchmark_files import (
    DATA,
    lab_row,
    needs_data,
    write_lines,
    write_parquet,
)
from tests.verifier.test_importer_biomni import EVAL1
from verifier.draft import Draft
from verifier.freeze import Declared, freeze_draft
from verifier.importers.biomni import Biomni
from verifier.importers.lab_bench import LabBench
from verifier.importers.paper import COUNTS, FAMILIES, check_name, difference_table, differences
from verifier.layout import ReleaseError
from verifier.release import Release


def shown(source: Draft | Release) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(difference_table(source))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.spec("DATA-01")
def test_the_paper_has_895_tasks_of_four_families_and_16_subtopics() -> None:
    assert list(FAMILIES) == ["DbQA", "GWAS", "LitQA2", "ProtocolQA"] == list(COUNTS)
    assert [len(subtopics) for subtopics in FAMILIES.values()] == [10, 4, 1, 1]
    assert {family: sum(own.values()) for family, own in COUNTS.items()} == {
        "DbQA": 511,
        "GWAS": 180,
        "LitQA2": 96,
        "ProtocolQA": 108,
    }
    assert [sum(own[split] for own in COUNTS.values()) for split in ("train", "val", "test")] == [715, 90, 90]


@needs_data
@pytest.mark.spec("DATA-01")
def test_importers_give_exactly_the_16_subtopics_of_the_four_families(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path / "draft")
    draft.add(LabBench(DATA / "LAB-Bench"), ("duplicate-options",))
    draft.add(Biomni(DATA / "biomni-dataset"), ("label-outside-candidates",))
    # The third source of causal genes is public only as rows of Eval1.
    draft.add(Biomni(write_parquet(tmp_path / "eval1.parquet", EVAL1)))
    assert {family: set(own) for family, own in draft.header.families.items()} == {
        family: set(own) for family, own in FAMILIES.items()
    }


@needs_data
@pytest.mark.spec("DATA-01")
def test_the_table_says_by_how_much_the_public_rows_differ(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path / "draft")
    draft.add(LabBench(DATA / "LAB-Bench"), ("duplicate-options",))
    draft.add(Biomni(DATA / "biomni-dataset"), ("label-outside-candidates",))
    totals = {row.family: (row.paper, row.here) for row in differences(draft) if row.split is None}
    assert totals == {
        "DbQA": (511, 520),
        "GWAS": (180, 1694),
        "LitQA2": (96, 197),
        "ProtocolQA": (108, 108),
    }
    lines = {line.split()[1]: line for line in shown(draft).splitlines() if line.startswith("│")}
    assert "520 (+9)" in lines["DbQA"]
    assert "1694 (+1514)" in lines["GWAS"]
    assert "108 " in lines["ProtocolQA"]
    assert "108 (" not in lines["ProtocolQA"]
    assert "2519 (+1624)" in lines["all"]


def paper_sized(root: Path, rule: str, *, less: int = 0) -> Draft:
    """A draft with the paper's counts, of invented rows."""
    source, draft = root / "source", Draft.create(root / "draft")
    files = {
        "DbQA": "gene_location_task-v1-public",
        "LitQA2": "litqa-v2-public",
        "ProtocolQA": "protocolqa-v1-public",
    }
    for family, stem in files.items():
        count = sum(COUNTS[family].values()) - (less if family == "DbQA" else 0)
        rows = [
            lab_row(f"{family}-{n}", protocol=f"Step {n}" if family == "ProtocolQA" else None)
            for n in range(count)
        ]
        write_lines(source / family / f"{stem}.jsonl", rows)
    draft.add(LabBench(source))
    gwas = [EVAL1[0] | {"task_instance_id": n} for n in range(180)]
    draft.add(Biomni(write_parquet(root / "eval1.parquet", gwas)))
    left = {family: dict(own) for family, own in COUNTS.items()}
    splits = {}
    for question in draft.questions():
        split = next(name for name, n in left[question.family].items() if n)
        left[question.family][split] -= 1
        splits[question.id] = split
    draft.set_splits(splits, rule)
    return draft


@pytest.mark.spec("DATA-01")
def test_only_a_complete_id_list_makes_a_release_the_papers(tmp_path: Path) -> None:
    whole = paper_sized(tmp_path / "whole", "id list official.json (sha256:...), 895 of 895 tasks")
    assert all(row.by == 0 for row in differences(whole))
    check_name("sciencebuddy-895", whole)
    short = paper_sized(tmp_path / "short", "id list official.json (sha256:...), 894 of 894 tasks", less=1)
    with pytest.raises(
        ReleaseError,
        match="'ScienceBuddy': the paper's collection has 50 tasks of DbQA test, and here are 49",
    ):
        check_name("ScienceBuddy", short)
    with pytest.raises(ReleaseError, match="choose a name of your own"):
        freeze_draft(short, tmp_path / "scibuddy", Declared(name="scibuddy-895"))
    assert not (tmp_path / "scibuddy").exists()
    own = paper_sized(tmp_path / "own", "by hash, seed 'rinr'")
    with pytest.raises(ReleaseError, match="no id list says that the tasks are"):
        check_name("science-buddy", own)
    check_name("my-895", own)
