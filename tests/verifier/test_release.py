"""Frozen releases: what loads, and what is refused with one line (DATA-02)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.digest import digest_file
from tests.fixtures.releases import FAMILIES, tiny_release
from verifier.freeze import freeze
from verifier.grade import Grader
from verifier.layout import Header, write_header
from verifier.release import Release, ReleaseError, find
from verifier.task import AnswerFormat, Task
from verifier.verification import verify


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return tiny_release(tmp_path)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def reseal(root: Path, change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Make payload and digest fit the files again, as someone would who prepares a release by hand."""
    header = read_json(root / "release.json")
    for name, entry in header["payload"].items():
        if (root / name).is_file():
            entry |= {"digest": digest_file(root / name), "size": (root / name).stat().st_size}
    if change is not None:
        change(header)
    write_header(root, Header.model_validate(header))


def edit_task(root: Path, index: int, **fields: Any) -> None:
    path = root / "public" / "tasks.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows[index] |= fields
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def check_all(root: Path) -> None:
    """What a run checks, then what `rinr release verify` checks beside it."""
    Release.load(root)
    verify(root)


def refused(root: Path, *parts: str) -> None:
    with pytest.raises(ReleaseError) as caught:
        check_all(root)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_a_release_gives_its_tasks_by_split_and_id(release: Release) -> None:
    assert (release.name, release.licence, release.no_training) == ("tiny", "CC0-1.0", False)
    assert [len(release.split(split)) for split in ("train", "val", "test")] == [8, 4, 4]
    for split in ("train", "val", "test"):
        ids = [task.id for task in release.split(split)]
        assert ids == sorted(ids)
        assert all(release.task(task_id).split == split for task_id in ids)
    assert release.lake == release.root / "lake"
    with pytest.raises(KeyError):
        release.task("nothing")


@pytest.mark.spec("DATA-02")
def test_equal_content_has_an_equal_digest_and_any_change_another(tmp_path: Path) -> None:
    one, two = tiny_release(tmp_path / "one"), tiny_release(tmp_path / "two")
    assert one.digest == two.digest
    (two.root / "private" / "references.jsonl").write_bytes(
        (two.root / "private" / "references.jsonl").read_bytes().replace(b"1085", b"1086")
    )
    reseal(two.root)
    changed = Release.load(two.root)
    assert changed.digest != one.digest
    assert changed.verifier_identity() != one.verifier_identity()


@pytest.mark.spec("DATA-02")
@pytest.mark.parametrize(
    "name", ["public/tasks.jsonl", "private/references.jsonl", "lake/metals.csv", "lake/cities.tsv"]
)
def test_a_changed_or_missing_file_is_named(release: Release, name: str) -> None:
    path = release.root / name
    original = path.read_bytes()
    path.write_bytes(original.replace(b"e", b"i", 1))
    refused(release.root, name, "was changed", "digest")
    path.write_bytes(original + b" ")
    refused(release.root, name, "was changed", "size")
    path.unlink()
    refused(release.root, name, "missing")


@pytest.mark.spec("DATA-02")
def test_a_changed_task_text_is_refused_even_with_the_payload_entry_mended(release: Release) -> None:
    edit_task(release.root, 0, prompt="What is the answer?")
    refused(release.root, "public/tasks.jsonl", "was changed")
    header = read_json(release.root / "release.json")
    path = release.root / "public" / "tasks.jsonl"
    header["payload"]["public/tasks.jsonl"] = {"digest": digest_file(path), "size": path.stat().st_size}
    (release.root / "release.json").write_text(json.dumps(header))
    refused(release.root, "release.json", "digest does not fit")


@pytest.mark.spec("DATA-02")
def test_a_lake_entry_without_its_size_is_named(release: Release) -> None:
    header = read_json(release.root / "release.json")
    del header["payload"]["lake/metals.csv"]["size"]
    (release.root / "release.json").write_text(json.dumps(header))
    refused(release.root, "release.json", "lake/metals.csv", "size", "Field required")


@pytest.mark.spec("DATA-02")
def test_a_file_or_link_that_is_not_listed_is_named(release: Release) -> None:
    (release.root / "lake" / "extra.tsv").write_text("x")
    refused(release.root, "lake/extra.tsv", "not listed")
    (release.root / "lake" / "extra.tsv").unlink()
    (release.root / "lake" / "link.tsv").symlink_to("cities.tsv")
    refused(release.root, "lake/link.tsv", "symbolic link")


@pytest.mark.spec("DATA-02")
@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"id": "city-1"}, ("line 2", "'city-1'", "appears twice")),
        ({"answer_format": "essay"}, ("line 1", "answer_format")),
        ({"answer_format": "text"}, ("line 1", "city-0", "options belong to the letter format")),
        ({"options": ["x", "X ", "y"]}, ("line 1", "two options have the same text")),
        ({"options": ["x"]}, ("line 1", "options belong")),
        ({"split": "holdout"}, ("line 1", "split")),
        ({"subtopic": "contry"}, ("city-0", "cities/contry", "not declared")),
        ({"files": ["map.png"]}, ("city-0", "map.png")),
        ({"id": "../x"}, ("'../x'", "plain file name")),
        ({"reference": "A"}, ("line 1", "reference")),
    ],
)
def test_a_malformed_task_is_named_with_its_line(
    release: Release, fields: dict[str, Any], parts: tuple[str, ...]
) -> None:
    edit_task(release.root, 0, **fields)
    reseal(release.root)
    refused(release.root, "public/tasks.jsonl", *parts)


@pytest.mark.spec("DATA-01", "DATA-02", "RL-03")
def test_one_id_in_two_splits_is_refused(release: Release) -> None:
    edit_task(release.root, 4, id="city-3")
    reseal(release.root)
    refused(release.root, "line 5", "'city-3'", "appears twice, in train and in val")


@pytest.mark.spec("DATA-01", "DATA-02")
def test_tasks_out_of_order_are_refused_so_that_no_id_can_hide(release: Release) -> None:
    edit_task(release.root, 7, id="city-0")
    reseal(release.root)
    refused(release.root, "line 8", "'city-0'", "comes after 'city-6'")


@pytest.mark.spec("DATA-02")
def test_counts_that_do_not_fit_the_tasks_are_refused(release: Release) -> None:
    reseal(release.root, lambda header: header["counts"].update(val=3))
    refused(release.root, "has 4 val tasks and release.json says 3")


@pytest.mark.spec("DATA-02")
@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (b'"task":"city-0"', b'"task":"city-9"', ("line 1", "no reference for task 'city-0'", "city-9")),
        (b'"task":"metal-7"', b'"task":"metal-6"', ("line 16", "second reference of task 'metal-6'")),
        (b'"task":"metal-7"', b'"task":"metal-77"', ("line 16", "no reference for task 'metal-7'")),
        (b'"task":"metal-7"', b'"task":"cello-1"', ("line 16", "'cello-1' comes too late")),
        (b'"answer":"Fe"', b'"anser":"Fe"', ("private/references.jsonl line 9",)),
    ],
)
def test_references_that_do_not_fit_the_tasks_are_refused_by_the_grader(
    release: Release, old: bytes, new: bytes, parts: tuple[str, ...]
) -> None:
    path = release.root / "private" / "references.jsonl"
    path.write_bytes(path.read_bytes().replace(old, new))
    reseal(release.root)
    Release.load(release.root)
    refused(release.root, "tiny", *parts)


@pytest.mark.spec("DATA-02")
def test_a_task_without_a_reference_is_refused_by_the_grader(release: Release) -> None:
    path = release.root / "private" / "references.jsonl"
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    reseal(release.root)
    with pytest.raises(ReleaseError, match="no reference for task 'city-0'"):
        Grader(Release.load(release.root)).start()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', "\x00"])
def test_a_folder_without_a_readable_header_is_one_line(tmp_path: Path, text: str) -> None:
    refused(tmp_path, "is not a release")
    (tmp_path / "release.json").write_text(text)
    refused(tmp_path, "release.json")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "lake/../../x", "lake//x", "release.json"])
def test_a_payload_path_outside_the_release_is_refused(release: Release, name: str) -> None:
    reseal(
        release.root, lambda header: header["payload"].update({name: header["payload"]["lake/metals.csv"]})
    )
    refused(release.root, repr(name), "not a plain path")


def test_a_release_is_found_by_bundled_name_or_folder(release: Release) -> None:
    assert find("open-genomics").name == "open-genomics"
    assert find(str(release.root)).digest == release.digest
    with pytest.raises(ReleaseError, match=r"no release 'open-genomic'.*open-genomics"):
        find("open-genomic")


def test_skipping_verification_still_reads_and_checks_the_tasks(release: Release) -> None:
    (release.root / "lake" / "metals.csv").write_text("x")
    assert Release.load(release.root, verify=False).digest == release.digest
    edit_task(release.root, 0, split="holdout")
    with pytest.raises(ReleaseError, match="split"):
        Release.load(release.root, verify=False)


def test_assets_and_odd_characters_survive_freezing(tmp_path: Path) -> None:
    prompt = "line one\u2028still the same line \u0085 \x1e end"
    task = Task(
        id="t", split="train", family="cities", subtopic="country", material_group="g", prompt=prompt,
        answer_format=AnswerFormat.TEXT, files=("map.txt",),
    )  # fmt: skip
    release = freeze(
        tmp_path / "odd",
        name="odd",
        licence="x",
        sources=[],
        families=FAMILIES,
        tasks=[task],
        references={"t": {"answer": "a\u2028b"}},
        assets={"t": {"map.txt": b"here"}},
        no_training=True,
    )
    assert release.task("t").prompt == prompt
    assert release.no_training
    assert release.lake is None
    assert release.inventory().tables == ()
    assets = release.assets("t")
    assert assets is not None
    assert (assets / "map.txt").read_bytes() == b"here"
    assert Grader(release).grade("t", "<answer>A B</answer>").correct


def test_freezing_never_writes_over_a_folder(release: Release) -> None:
    with pytest.raises(ReleaseError, match="exists already"):
        freeze(release.root, name="x", licence="x", sources=[], families={}, tasks=[], references={})


@pytest.mark.spec("DATA-02")
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "Two Words"}, "name"),
        ({"lake": {"../outside.tsv": b"x"}}, "not a plain path"),
        ({"references": {"t": {"unit": "bp"}}}, "references.jsonl line 1"),
        ({"references": {}}, "no reference for task 't'"),
        ({"families": {"cities": ["contry"]}}, "cities/country is not declared"),
    ],
)
def test_what_would_not_load_is_not_frozen_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    task = Task(
        id="t", split="train", family="cities", subtopic="country", material_group="g", prompt="?",
        answer_format=AnswerFormat.TEXT,
    )  # fmt: skip
    values: dict[str, Any] = {
        "name": "x", "licence": "x", "sources": [], "families": FAMILIES, "tasks": [task],
        "references": {"t": {"answer": "a"}},
    }  # fmt: skip
    with pytest.raises(ReleaseError, match=complaint) as caught:
        freeze(tmp_path / "release", **(values | changes))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("EVID-02")
def test_every_reference_has_its_own_canary_and_nothing_public_has_one(release: Release) -> None:
    rows = (release.root / "private" / "references.jsonl").read_text(encoding="utf-8").splitlines()
    canaries = {json.loads(row)["canary"] for row in rows}
    assert len(canaries) == len(release.tasks)
    assert all(canary.startswith("rinr-canary-") for canary in canaries)
    public = [path for path in release.root.rglob("*") if path.is_file() and path.parent.name != "private"]
    assert not any(b"rinr-canary-" in path.read_bytes() for path in public)
