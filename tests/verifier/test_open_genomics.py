"""The bundled release: its size, its splits, and that the lake answers every question."""

import csv
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from verifier.answers import answer_form
from verifier.grade import Grader
from verifier.open_genomics.build import COUNTS, build
from verifier.release import Release, find
from verifier.task import Split, Task

SOURCE = Path(os.environ.get("RINR_DATA", "../shared/data")) / "ideogram-1.53.0"
SPLITS: tuple[Split, ...] = ("train", "val", "test")


@pytest.fixture(scope="module")
def release() -> Release:
    return find("open-genomics")


@pytest.fixture(scope="module")
def answers(release: Release) -> dict[str, str]:
    """Right answers by task id. A test may read them; nothing that serves a model may."""
    lines = (release.root / "private" / "references.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["task"]: row["answer"] for row in map(json.loads, lines)}


@pytest.fixture(scope="module")
def lake(release: Release) -> dict[str, list[dict[str, str]]]:
    assert release.lake is not None
    tables: dict[str, list[dict[str, str]]] = {}
    for path in sorted(release.lake.iterdir()):
        with path.open(encoding="utf-8", newline="") as handle:
            tables[path.stem] = list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
    return tables


def subject(task: Task) -> str:
    return task.prompt.split('"')[1]


def candidates(task: Task) -> list[str]:
    return task.prompt.split("Genes: ")[1].split("\n")[0].split(", ")


@pytest.mark.spec("DATA-02")
def test_the_bundled_release_loads_with_its_counts(release: Release) -> None:
    Grader(release).start()
    for split in SPLITS:
        assert Counter(task.family for task in release.split(split)) == COUNTS[split]
    assert [len(release.split(split)) for split in SPLITS] == [240, 60, 60]
    assert release.licence == "CC0-1.0"
    assert (release.root / "LICENSE").is_file()
    assert sum(path.stat().st_size for path in (release.root / "lake").iterdir()) < 600_000


@pytest.mark.spec("DATA-01", "RL-03")
def test_splits_share_no_id_no_subject_no_answer_and_no_band(
    release: Release, answers: dict[str, str]
) -> None:
    bands = {split: {task.material_group for task in release.split(split)} for split in SPLITS}
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not bands[one] & bands[other]
    subjects = [subject(task) for task in release.tasks]
    assert len(set(subjects)) == len(subjects)
    genes = [answers[task.id] for task in release.tasks if task.answer_format == "symbol"]
    assert len(set(genes)) == len(genes)
    assert not set(genes) & set(subjects)


def test_the_lake_answers_every_question(
    release: Release, answers: dict[str, str], lake: dict[str, list[dict[str, str]]]
) -> None:
    genes = {row["symbol"]: row for row in lake["genes"]}
    holders = {row["variant"]: row["gene"] for row in lake["variants"]}
    near: dict[str, dict[str, int]] = {}
    for row in lake["distances"]:
        near.setdefault(row["variant"], {})[row["gene"]] = int(row["distance"])
    assert len(genes) == len(lake["genes"])
    assert len(holders) == len(lake["variants"])
    assert not holders.keys() & near.keys()
    grader = Grader(release)
    for task in release.tasks:
        name = subject(task)
        match task.family:
            case "gene_location":
                found = genes[name]["band"]
                assert task.options["ABCD".index(answers[task.id])] == found
            case "gene_length":
                found = genes[name]["length"]
                assert int(found) == int(genes[name]["end"]) - int(genes[name]["start"]) + 1
            case "variant_gene":
                found = holders[name]
            case _:
                distances = near[name]
                assert sorted(distances) == sorted(candidates(task))
                assert len(set(distances.values())) == len(distances)
                assert min(distances.values()) > 0
                found = min(distances, key=lambda gene: distances[gene])
        assert grader.grade(task.id, f"<answer>{found}</answer>").correct


def test_bands_and_genes_agree(lake: dict[str, list[dict[str, str]]]) -> None:
    bands = {row["band"]: row for row in lake["bands"]}
    for gene in lake["genes"]:
        band, middle = bands[gene["band"]], (int(gene["start"]) + int(gene["end"])) // 2
        assert band["chromosome"] == gene["chromosome"]
        assert int(band["start"]) <= middle <= int(band["end"])


def test_questions_are_short_quote_one_subject_and_end_with_the_asked_form(release: Release) -> None:
    for task in release.tasks:
        assert task.prompt.count('"') == 2
        assert task.prompt.splitlines()[-1] == f"Answer with {answer_form(task.answer_format)}."
        assert len(task.prompt) < 180
        for letter, option in zip("ABCD", task.options, strict=False):
            assert f"\n{letter}. {option}\n" in task.prompt


@pytest.mark.parametrize("split", SPLITS)
def test_no_trivial_rule_beats_chance_by_more_than_ten_points(
    release: Release, answers: dict[str, str], split: Split
) -> None:
    letters = [task for task in release.split(split) if task.options]
    lengths = [[len(option) for option in task.options] for task in letters]
    right = ["ABCD".index(answers[task.id]) for task in letters]
    rules: dict[str, list[int]] = {f"always {letter}": [i] * len(letters) for i, letter in enumerate("ABCD")}
    rules["longest option"] = [row.index(max(row)) for row in lengths]
    rules["shortest option"] = [row.index(min(row)) for row in lengths]
    for rule, guesses in rules.items():
        hits = sum(guess == truth for guess, truth in zip(guesses, right, strict=True))
        assert hits / len(letters) <= 0.35, rule
    nearest = [task for task in release.split(split) if task.family == "nearest_gene"]
    chance = sum(1 / len(candidates(task)) for task in nearest) / len(nearest)
    places = Counter(candidates(task).index(answers[task.id]) for task in nearest)
    assert max(places.values()) / len(nearest) <= chance + 0.1


@pytest.mark.skipif(not SOURCE.is_dir(), reason="the ideogram data folder is not here (RINR_DATA)")
def test_building_again_gives_the_bundled_bytes(release: Release, tmp_path: Path) -> None:
    rebuilt = build(SOURCE, tmp_path / "again")
    assert rebuilt.digest == release.digest
    assert files(rebuilt.root) == files(release.root)


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
