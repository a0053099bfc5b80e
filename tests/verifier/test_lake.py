"""One lake for several releases, kept by content (and T12: what a release says of its lake is checked)."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from catalog.store import Store
from flows.cli import app
from tests.fixtures.audited import task
from tests.fixtures.releases import tiny_release
from verifier.draft import Draft
from verifier.freeze import Declared, freeze_draft
from verifier.lake import Lake, add_lake, place_lake, take_lake
from verifier.layout import ReleaseError
from verifier.release import Release


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    (made / "deep").mkdir(parents=True)
    (made / "genes.tsv").write_text("gene\tlength\nTP53\t25759\n")
    (made / "deep" / "big.bin").write_bytes(bytes(3_000_000))
    return made


def released(root: Path, name: str, folder: Path, store: Store) -> Release:
    draft = Draft.create(root / f"draft-{name}")
    draft.fill([task("a", "train", "Length of TP53?")], {"a": {"answer": "25759"}})
    add_lake(draft, folder, store)
    freeze_draft(draft, root / name, Declared(name=name, licence="CC0-1.0", families={"f": ("s",)}))
    return Release.load(root / name)


@pytest.mark.spec("DATA-02")
def test_two_releases_with_the_same_lake_use_its_bytes_once(
    tmp_path: Path, store: Store, folder: Path
) -> None:
    one, other = (released(tmp_path, name, folder, store) for name in ("one", "other"))
    for name in ("lake/genes.tsv", "lake/deep/big.bin"):
        first, second = (release.root / name for release in (one, other))
        assert first.stat().st_ino == second.stat().st_ino
        assert first.read_bytes() == (folder / name.removeprefix("lake/")).read_bytes()
    seen: dict[int, int] = {}
    for path in (*one.root.rglob("*"), *other.root.rglob("*"), *store.root.rglob("*")):
        if path.is_file():
            seen[path.stat().st_ino] = path.stat().st_size
    assert sum(seen.values()) < 3_100_000
    # The store's file is not the source's: whoever edits the source harms no release.
    assert (folder / "genes.tsv").stat().st_ino not in seen
    (folder / "genes.tsv").write_text("changed")
    Release.load(one.root)


def test_a_lake_has_one_identity_wherever_it_was_taken(tmp_path: Path, store: Store, folder: Path) -> None:
    lake = take_lake(folder, store)
    assert [file.path for file in lake.files] == ["deep/big.bin", "genes.tsv"]
    assert lake.size == 3_000_000 + (folder / "genes.tsv").stat().st_size
    assert take_lake(folder, Store(tmp_path / "second")).digest == lake.digest
    (folder / "genes.tsv").rename(folder / "other.tsv")
    assert take_lake(folder, store).digest != lake.digest
    assert Lake.model_validate_json(lake.model_dump_json()) == lake


def test_only_the_named_files_are_taken(store: Store, folder: Path) -> None:
    assert [file.path for file in take_lake(folder, store, ["genes.tsv"]).files] == ["genes.tsv"]
    with pytest.raises(ReleaseError, match=r"gone\.tsv is missing"):
        take_lake(folder, store, ["gone.tsv"])
    with pytest.raises(ReleaseError, match="not a plain path"):
        take_lake(folder, store, ["../source/genes.tsv"])


def test_empty_files_and_resource_forks_are_listed(store: Store, folder: Path) -> None:
    (folder / "none.csv").touch()
    (folder / "._genes.tsv").write_bytes(b"\0\5\x16\7")
    assert take_lake(folder, store).remarks == (
        "._genes.tsv: a resource fork of another system, of no use",
        "none.csv: empty file",
    )


def link_out(folder: Path) -> None:
    (folder / "out.tsv").symlink_to("/etc/hostname")


def link_in(folder: Path) -> None:
    (folder / "in.tsv").symlink_to(folder / "genes.tsv")


def link_folder(folder: Path) -> None:
    (folder / "linked").symlink_to("/etc")


def dangling(folder: Path) -> None:
    (folder / "gone.tsv").symlink_to("nowhere")


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def odd_name(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.tsv")).touch()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (link_out, r"out\.tsv is a symbolic link"),
        (link_in, r"in\.tsv is a symbolic link"),
        (link_folder, "linked is a symbolic link"),
        (dangling, r"gone\.tsv is a symbolic link"),
        (fifo, "pipe is not an ordinary file"),
        (odd_name, "not UTF-8"),
    ],
)
def test_links_and_odd_files_are_refused_by_name(
    store: Store, folder: Path, change: Callable[[Path], None], said: str
) -> None:
    change(folder)
    with pytest.raises(ReleaseError, match=said):
        take_lake(folder, store)


def test_a_folder_that_is_reached_over_a_link_is_taken(tmp_path: Path, store: Store, folder: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    assert take_lake(tmp_path / "alias", store).digest == take_lake(folder, store).digest


def test_a_second_lake_joins_the_first_and_a_conflict_places_nothing(
    tmp_path: Path, store: Store, folder: Path
) -> None:
    draft = Draft.create(tmp_path / "draft")
    add_lake(draft, folder, store)
    add_lake(draft, folder, store)
    other = tmp_path / "more"
    other.mkdir()
    (other / "genes.tsv").write_text("another\n")
    (other / "aaa.tsv").write_text("new\n")
    with pytest.raises(ReleaseError, match=r"genes\.tsv is another file already"):
        add_lake(draft, other, store)
    assert not (draft.root / "lake" / "aaa.tsv").exists()


def test_a_corrupt_object_is_never_placed(tmp_path: Path, store: Store, folder: Path) -> None:
    lake = take_lake(folder, store)
    (genes,) = [file for file in lake.files if file.path == "genes.tsv"]
    name = genes.digest.removeprefix("sha256:")
    stored = store.root / "objects" / name[:2] / name[2:]
    stored.chmod(0o644)
    stored.write_text("tampered")
    with pytest.raises(ReleaseError, match=r"'genes\.tsv'.*corrupt"):
        place_lake(lake, store, tmp_path / "place")
    assert [path for path in (tmp_path / "place").rglob("*") if path.is_file()] == []


def test_across_devices_a_lake_is_copied(
    tmp_path: Path, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    lake = take_lake(folder, store)
    place_lake(lake, store, tmp_path / "place")
    placed = tmp_path / "place" / "genes.tsv"
    assert placed.read_bytes() == (folder / "genes.tsv").read_bytes()
    assert placed.stat().st_nlink == 1


@pytest.mark.spec("DATA-02")
def test_a_lake_entry_without_its_size_is_refused_naming_the_entry_T12(tmp_path: Path) -> None:
    release = tiny_release(tmp_path)
    header = orjson.loads((release.root / "release.json").read_bytes())
    del header["payload"]["lake/metals.csv"]["size"]
    (release.root / "release.json").write_bytes(orjson.dumps(header))
    with pytest.raises(ReleaseError, match=r"release\.json: payload\.lake/metals\.csv\.size"):
        Release.load(release.root)


@pytest.mark.spec("DATA-02")
@pytest.mark.parametrize("name", ["lake/metals.csv", "public/tasks.jsonl"])
def test_a_file_changed_after_freezing_is_refused_by_name_T12(tmp_path: Path, name: str) -> None:
    release = tiny_release(tmp_path)
    path = release.root / name
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data.replace(b"e", b"a", 1))
    with pytest.raises(ReleaseError, match=name):
        Release.load(release.root)


def test_release_lake_adds_a_folder_and_says_what_is_odd(tmp_path: Path, folder: Path) -> None:
    (folder / "none.csv").touch()
    draft = Draft.create(tmp_path / "draft").root
    command = ["release", "lake", str(draft), str(folder), "--store", str(tmp_path / "kept")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "3 files, 3,000,023 bytes" in done.stdout
    assert "none.csv: empty file" in done.stdout
    assert (draft / "lake" / "genes.tsv").stat().st_nlink == 2
    (folder / "link").symlink_to("/etc/hostname")
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code != 0
    assert "symbolic link" in refused.output
    assert "Traceback" not in refused.output
