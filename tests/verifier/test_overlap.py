"""Overlap between splits, declared and measured, and which lake file answers what (DATA-03, DATA-05)."""

import gzip
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.audited import DATA, audited, lab_bench, task
from verifier.audit import hashing
from verifier.audit.gather import Sketch
from verifier.audit.model import Overlap
from verifier.task import Task

REAL = pytest.mark.skipif(not (DATA / "LAB-Bench").is_dir(), reason="LAB-Bench is not here (RINR_DATA)")
LAKE = DATA / "local-only" / "playdata-gmt"
SPLITS = [("train", "val"), ("train", "test"), ("val", "test")]
GMT = pytest.mark.skipif(not LAKE.is_dir(), reason="the local data lake is not here (RINR_DATA)")


def passage(seed: int, words: int = 60) -> str:
    return " ".join(f"w{random.Random(seed * 1000 + n).randrange(10**6)}" for n in range(words))


def naive_words(line: str) -> list[str]:
    return [
        word.translate({code: code + 32 for code in range(65, 91)})
        for word in re.findall(r"[0-9A-Za-z_\u0080-\U0010ffff]+", line)
    ]


def plain_shingles(line: str) -> set[tuple[str, ...]]:
    words = naive_words(line)
    return {tuple(words[at : at + hashing.SHINGLE]) for at in range(len(words) - hashing.SHINGLE + 1)}


def passages(overlap: Overlap) -> list[tuple[str, str, int, int]]:
    return [(item.one, item.other, item.pairs, item.undeclared) for item in overlap.passages]


def other_tasks(number: int) -> list[tuple[Task, str]]:
    return [(task(f"x{n:02d}", "train", f"{passage(500 + n)} Why?"), "") for n in range(number)]


@pytest.mark.spec("DATA-03")
def test_a_passage_that_two_splits_share_is_found_though_undeclared() -> None:
    shared = passage(1)
    rows = [
        *other_tasks(20),
        (task("a", "train", f"{shared} What went wrong?"), ""),
        (task("b", "test", f"Read this. {shared} How is it repaired, and why?"), ""),
    ]
    result = audited(rows)
    assert passages(result.overlap) == [("train", "test", 1, 1)]
    assert result.overlap.passages[0].examples == (("a", "b"),)
    assert "undeclared-passages" in [flag.code for flag in result.warnings]


@pytest.mark.spec("DATA-03")
def test_a_shared_passage_of_one_declared_group_is_counted_as_declared() -> None:
    shared = passage(1)
    rows = [
        *other_tasks(20),
        (task("a", "train", f"{shared} What?", group="protocol 1"), ""),
        (task("b", "test", f"{shared} Why?", group="protocol 1"), ""),
    ]
    overlap = audited(rows).overlap
    assert passages(overlap) == [("train", "test", 1, 0)]
    assert [(g.one, g.other, g.count, g.tasks) for g in overlap.groups] == [("train", "test", 1, 1)]


def test_twenty_six_words_in_common_are_no_passage_and_twenty_seven_are() -> None:
    for words, found in ((26, 0), (27, 1)):
        shared = passage(1, words)
        rows = [
            (task("a", "train", f"{passage(2)} {shared} {passage(3)}"), ""),
            (task("b", "test", f"{passage(4)} {shared} {passage(5)}"), ""),
        ]
        assert len(audited(rows).overlap.passages) == found


def test_the_wording_of_a_subtopic_is_no_overlap() -> None:
    frame = passage(9, 40)
    rows = [
        (task(f"t{n:02d}", "train" if n % 2 else "test", f"{frame} GENE{n}x{n}? {frame}"), "")
        for n in range(40)
    ]
    assert audited(rows).overlap.passages == ()


def test_the_wording_of_a_small_subtopic_is_no_overlap_and_a_passage_of_two_is() -> None:
    frame, shared = passage(9, 40), passage(8, 40)
    rows = [
        (task("a", "train", f"{frame} {shared} SETX_1 GENEA1?", subtopic="small"), ""),
        (task("b", "test", f"{frame} {shared} SETX_1 GENEB2?", subtopic="small"), ""),
        (task("c", "val", f"{frame} {passage(7)} SETX_1 GENEC3?", subtopic="small"), ""),
    ]
    overlap = audited([*rows, *other_tasks(20)]).overlap
    assert passages(overlap) == [("train", "test", 1, 1)]


def test_a_name_that_a_small_subtopic_always_has_is_no_shared_name() -> None:
    rows = [(task(name, split, "Of SET_X, why?"), "") for name, split in (("a", "train"), ("b", "test"))]
    assert [item.count for item in audited(rows).overlap.entities] == [1]
    assert audited([*rows, (task("c", "val", "Of SET_X, where?"), "")]).overlap.entities == ()


@pytest.mark.spec("DATA-03")
def test_rare_names_that_two_splits_share_are_counted_and_common_ones_are_not() -> None:
    rows = [(task(f"t{n:02d}", "train", f"Of ClinVar and G{n}XX: why?"), "") for n in range(20)]
    rows += [(task("u", "val", "Of ClinVar and g3xx: why not?"), "")]
    (shared,) = audited(rows).overlap.entities
    # ClinVar is in all; G3XX has a digit and is in two. Lower case letters do not hide it: it has a digit.
    assert (shared.one, shared.other, shared.count, shared.tasks) == ("train", "val", 1, 1)
    assert shared.examples == (("t03", "u"),)


@REAL
@pytest.mark.spec("DATA-03")
def test_shared_protocols_of_protocolqa_are_found_though_undeclared() -> None:
    """Ground truth by plain sets: rows with twenty shingles in common; protocols were edited row by row."""
    undeclared, declared = lab_bench("ProtocolQA"), lab_bench("ProtocolQA", by_protocol=True)
    assert len(undeclared) == 108
    plain = [(made, plain_shingles(made.prompt)) for made, _ in declared]
    common: Counter[tuple[str, str]] = Counter()
    unlike: Counter[tuple[str, str]] = Counter()
    for one, first in plain:
        for other, second in plain:
            pair = (one.split, other.split)
            if pair in SPLITS and len(first & second) >= 20:
                common[pair] += 1
                unlike[pair] += one.material_group != other.material_group
    found = audited(undeclared).overlap
    assert found.groups == ()
    assert passages(found) == [(*pair, common[pair], common[pair]) for pair in SPLITS]
    known = audited(declared).overlap
    assert [item.undeclared for item in known.passages] == [unlike[pair] for pair in SPLITS]
    assert sum(unlike.values()) < 0.2 * sum(common.values())
    assert sum(item.count for item in known.groups) > 0


@GMT
@REAL
@pytest.mark.spec("DATA-05")
def test_the_lake_files_that_answer_dbqa_are_named_and_guess_only_is_marked() -> None:
    answerability = audited(lab_bench("DbQA"), LAKE).answerability
    assert answerability is not None
    by_name = {item.subtopic: item for item in answerability.subtopics}
    assert {name: item.tasks for name, item in by_name.items()} == {
        "dga_task": 40,
        "gene_location_task": 40,
        "mirna_targets_task": 40,
        "mouse_tumor_gene_sets": 80,
        "oncogenic_signatures_task": 40,
        "tfbs_GTRD_task": 40,
        "variant_from_sequence_task": 80,
        "variant_multi_sequence_task": 80,
        "vax_response_task": 40,
        "viral_ppi_task": 40,
    }
    # What was found by hand: see the README of the data.
    for subtopic, file, count in (
        ("oncogenic_signatures_task", "C6.MSigDB.gmt", 40),
        ("viral_ppi_task", "Virus-Host_PPI_P-HIPSTer_2020.gmt", 40),
        ("gene_location_task", "C1.MSigDB.gmt", 38),
        ("mouse_tumor_gene_sets", "MGI_Mammalian_Phenotype_Level_4_2021.gmt", 35),
    ):
        best = by_name[subtopic].files[0]
        assert (best.file, best.determines, by_name[subtopic].guess_only) == (file, count, False)
    assert {name for name, item in by_name.items() if item.guess_only} == {
        "dga_task",
        "mirna_targets_task",
        "variant_from_sequence_task",
        "variant_multi_sequence_task",
        "vax_response_task",
    }


@REAL
def test_every_benchmark_of_the_real_files_is_audited() -> None:
    litqa = audited(lab_bench("LitQA2"))
    assert litqa.tasks == 197
    assert {item.with_options for item in litqa.baselines} == {item.tasks for item in litqa.baselines}
    assert sum(item.unanswered for item in litqa.baselines) == 0


@pytest.mark.spec("DATA-05")
def test_a_row_determines_an_answer_only_without_a_wrong_option_beside_it(tmp_path: Path) -> None:
    (tmp_path / "good.tsv").write_text("SETA\tGOODGENE1\nSETB\tBADGENE2\n")
    with gzip.open(tmp_path / "both.txt.gz", "wt") as handle:
        handle.write("SETA GOODGENE1 BADGENE2\n")
    (tmp_path / "apart.csv").write_text("SETA,x\nGOODGENE1,y\n")
    (tmp_path / "nothing.csv").write_text("SETA,BADGENE2\n")
    (tmp_path / "odd.bin").write_bytes(b"SETA GOODGENE1\n")
    (tmp_path / "broken.txt.gz").write_bytes(b"SETA GOODGENE1\n")
    rows = [(task("a", question="Which is in SETA?", options=("GOODGENE1", "BADGENE2")), "A")]
    answerability = audited(rows, tmp_path).answerability
    assert answerability is not None
    (subtopic,) = answerability.subtopics
    assert [(f.file, f.determines, f.mentions) for f in subtopic.files] == [
        ("good.tsv", 1, 0),
        ("apart.csv", 0, 1),
        ("both.txt.gz", 0, 1),
    ]
    assert (subtopic.determined, subtopic.mentioned, subtopic.guess_only) == (1, 0, False)
    assert [entry.split(":")[0] for entry in answerability.files_skipped] == ["broken.txt.gz", "odd.bin"]


def test_tasks_that_a_helpful_lake_does_not_answer_are_listed_and_those_of_train_by_id(
    tmp_path: Path,
) -> None:
    (tmp_path / "t.tsv").write_text("".join(f"GENE{n}A\tRIGHT{n}\n" for n in range(6)))
    rows = [(task(f"t{n}", question=f"What of GENE{n}A?"), f"RIGHT{n}") for n in range(7)]
    rows += [(task("u", "test", "What of GENE77A?"), "RIGHT77")]
    answerability = audited(rows, tmp_path).answerability
    assert answerability is not None
    assert answerability.unanswerable == ("t6",)
    assert answerability.unanswerable_total == 2


TEXTS = st.lists(st.text(st.sampled_from("aB1_ .\né,"), max_size=40), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_words_and_shingles_are_those_of_a_plain_loop(texts: list[str]) -> None:
    found = hashing.words(texts)
    expected = [(owner, word) for owner, line in enumerate(texts) for word in naive_words(line)]
    assert found.owners.tolist() == [owner for owner, _ in expected]
    same: dict[str, int] = {}
    for (_, word), value in zip(expected, found.hashes.tolist(), strict=True):
        assert same.setdefault(word, value) == value
    assert len(set(same.values())) == len(same)
    hashes, owners = hashing.shingles(found)
    plain = [
        (owner, tuple(words[at : at + hashing.SHINGLE]))
        for owner, words in enumerate(map(naive_words, texts))
        for at in range(len(words) - hashing.SHINGLE + 1)
    ]
    assert owners.tolist() == [owner for owner, _ in plain]
    assert len(set(hashes.tolist())) == len({shingle for _, shingle in plain})


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_questions_are_equal_exactly_when_their_words_are(texts: list[str]) -> None:
    hashes = hashing.sequences(hashing.words(texts)).tolist()
    for one, first in enumerate(texts):
        for other, second in enumerate(texts):
            assert (hashes[one] == hashes[other]) == (naive_words(first) == naive_words(second))


@pytest.mark.parametrize(
    ("word", "is_name"),
    [
        ("BRCA1", True),
        ("rs123", True),
        ("GSE_UP", True),
        ("isoForm", True),
        ("0010144", True),
        ("3T3L1", True),
        ("inner", False),
        ("Titled", False),
        ("KIT", False),
        ("150ml", False),
        ("2021", False),
        ("____", False),
    ],
)
def test_a_name_has_four_characters_and_a_digit_an_underscore_or_an_inner_capital(
    word: str, is_name: bool
) -> None:
    assert hashing.words([f"of {word}, then"]).names.tolist() == [False, is_name, False]


def test_a_full_sketch_keeps_the_same_hashes_for_every_task() -> None:
    sketch = Sketch(limit=200)
    values = hashing.words([" ".join(f"w{n}" for n in range(300))]).hashes
    for owner in range(4):
        sketch.add(values, (values * 0 + owner).astype("uint32"))
    assert sketch.scale > 1
    hashes, owners = sketch.sorted()
    assert 0 < len(hashes) <= 200
    assert len(set(hashes.tolist())) * 4 == len(hashes)
    assert sorted(set(owners.tolist())) == [0, 1, 2, 3]
