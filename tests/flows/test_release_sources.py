"""`rinr release import lab-bench|biomni`, `split` and `build`, as a user calls them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app
from tests.fixtures.benchmark_files import lab_row, write_lines, write_parquet
from tests.verifier.test_importer_biomni import EVAL1
from verifier.release import Release


def rinr(*words: object) -> Result:
    return CliRunner().invoke(app, ["release", *(str(word) for word in words)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [lab_row(f"q{n}") for n in range(10)]
    write_lines(
        tmp_path / "LAB-Bench/DbQA/dga_task-v1-public.jsonl", [*rows, lab_row("bad", distractors=["iron"])]
    )
    return tmp_path / "LAB-Bench"


@pytest.mark.parametrize("command", [["import", "lab-bench"], ["import", "biomni"], ["split"], ["build"]])
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    shown = rinr(*command, "--help")
    assert shown.exit_code == 0
    assert f"Example: rinr release {' '.join(command)}" in " ".join(shown.output.split())


def test_from_two_sources_to_a_release_with_the_droppings_listed(source: Path, tmp_path: Path) -> None:
    draft, release = tmp_path / "draft", tmp_path / "release"
    refused = rinr("import", "lab-bench", source, "--into", draft)
    assert refused.exit_code != 0
    assert "row 11: two options have the same text" in refused.output
    taken = rinr("import", "lab-bench", source, "--into", draft, "--drop", "duplicate-options")
    assert taken.exit_code == 0, taken.output
    assert "10 tasks from 11 rows of lab-bench, 1 left out" in taken.output
    assert "10 (-501)" in taken.output
    eval1 = write_parquet(tmp_path / "eval1.parquet", EVAL1)
    assert "4 tasks from 4 rows of biomni" in rinr("import", "biomni", eval1, "--into", draft).output
    dealt = rinr("split", draft, "--train", "8", "--val", "2", "--test", "2")
    assert dealt.exit_code == 0, dealt.output
    assert "material groups in two splits: 0 train-val, 0 train-test, 0 val-test" in dealt.output
    frozen = rinr("freeze", draft, release)
    assert frozen.exit_code == 0, frozen.output
    header = Release.load(release).header
    assert sum(header.counts.values()) == 12
    assert [row.kind for record in header.imports for row in record.dropped] == ["duplicate-options"]


def test_an_id_list_and_bad_sizes_on_the_command_line(source: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    rinr("import", "lab-bench", source, "--into", draft, "--drop", "duplicate-options", "--no-abstain")
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps({"train": ["q1"], "val": ["q2"], "test": ["q3"]}))
    listed = rinr("split", draft, "--ids", ids)
    assert "splits: 1 train, 1 val, 1 test\nleft out: 7 tasks" in listed.output
    assert rinr("split", draft, "--ids", ids, "--complete").exit_code != 0
    odd = rinr("split", draft, "--train", "most")
    assert odd.exit_code == 2
    assert "'most' is neither a count nor a share" in odd.output
    many = rinr("split", draft, "--train", "80", "--val", "1", "--test", "1")
    assert many.exit_code != 0
    assert "asked for 82 tasks" in many.output


def test_an_unknown_recipe_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    refused = rinr("build", "nothing", tmp_path / "out", "--data", tmp_path)
    assert refused.exit_code != 0
    assert "no recipe 'nothing': name a TOML file, or one of: demo-real" in refused.output
