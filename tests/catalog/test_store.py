"""The store in one process: what goes in comes out, and anything else is named."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.digest import digest_bytes
from catalog.store import Store, StoreError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def object_path(store: Store, digest: str) -> Path:
    name = digest.removeprefix("sha256:")
    return store.root / "objects" / name[:2] / name[2:]


def corrupt(store: Store, digest: str, data: bytes) -> None:
    path = object_path(store, digest)
    path.chmod(0o644)
    path.write_bytes(data)


@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=2000))
def test_a_blob_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    store = Store(tmp_path_factory.getbasetemp() / "shared-store")
    ref = store.put_blob(data)
    assert ref.digest == digest_bytes(data)
    assert store.get_blob(ref.digest) == data
    assert store.has(ref.digest)


def test_a_record_comes_back_under_its_schema_only(store: Store) -> None:
    ref = store.put_record("evidence", 1, {"b": [1, 2.5], "a": None})
    assert ref == store.put_record("evidence", 1, {"a": None, "b": [1, 2.5]})
    assert store.get_record(ref.digest, "evidence") == {"a": None, "b": [1, 2.5]}
    with pytest.raises(StoreError, match="has schema 'evidence', not 'verdict'"):
        store.get_record(ref.digest, "verdict")
    with pytest.raises(StoreError, match="is not a record"):
        store.get_record(store.put_blob(b"\x00").digest, "verdict")


def test_an_object_that_is_not_there_is_named(store: Store) -> None:
    missing = digest_bytes(b"never stored")
    assert not store.has(missing)
    for read in (store.get_blob, store.verify, store.tree_manifest):
        with pytest.raises(StoreError, match=missing):
            read(missing)
    with pytest.raises(StoreError, match="is not a digest"):
        store.has("../../etc/passwd")


@pytest.mark.parametrize("damaged", [b"", b"abd", b"abcd"])
def test_a_corrupt_object_is_found_on_read_and_repaired_by_writing_again(
    store: Store, damaged: bytes
) -> None:
    digest = store.put_blob(b"abc").digest
    corrupt(store, digest, damaged)
    for read in (store.get_blob, store.verify):
        with pytest.raises(StoreError, match="object is corrupt") as caught:
            read(digest)
        assert str(object_path(store, digest)) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert store.put_blob(b"abc").digest == digest
    assert store.get_blob(digest) == b"abc"


def make_tree(folder: Path) -> Path:
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "deep" / "run.sh").chmod(0o755)
    (folder / "deep" / "empty").touch()
    return folder


def test_a_tree_comes_back_with_content_and_executable_bits(store: Store, tmp_path: Path) -> None:
    ref = store.put_tree(make_tree(tmp_path / "in"))
    assert [(entry.path, entry.mode, entry.size) for entry in store.tree_manifest(ref.digest)] == [
        ("a.txt", "644", 1),
        ("deep/empty", "644", 0),
        ("deep/run.sh", "755", 10),
    ]
    assert (ref.kind, ref.size) == ("tree", 11)
    store.checkout_tree(ref.digest, tmp_path / "out")
    assert (tmp_path / "out" / "a.txt").read_text() == "a"
    assert os.access(tmp_path / "out" / "deep" / "run.sh", os.X_OK)
    assert store.put_tree(tmp_path / "out").digest == ref.digest
    store.verify(ref.digest)


def test_a_checkout_links_files_instead_of_copying_them(store: Store, tmp_path: Path) -> None:
    ref = store.put_tree(make_tree(tmp_path / "in"))
    store.checkout_tree(ref.digest, tmp_path / "out")
    stored = object_path(store, digest_bytes(b"a"))
    assert (tmp_path / "out" / "a.txt").stat().st_ino == stored.stat().st_ino


def test_the_name_order_and_times_of_files_do_not_change_a_tree(store: Store, tmp_path: Path) -> None:
    first = store.put_tree(make_tree(tmp_path / "one"))
    make_tree(tmp_path / "two")
    os.utime(tmp_path / "two" / "a.txt", (1, 1))
    assert store.put_tree(tmp_path / "two").digest == first.digest
    (tmp_path / "two" / "a.txt").rename(tmp_path / "two" / "b.txt")
    assert store.put_tree(tmp_path / "two").digest != first.digest


def test_links_and_special_files_in_a_tree_are_refused(store: Store, tmp_path: Path) -> None:
    folder = make_tree(tmp_path / "in")
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(StoreError, match="link is a symbolic link"):
        store.put_tree(folder)
    (folder / "link").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(StoreError, match="pipe is not an ordinary file"):
        store.put_tree(folder)
    with pytest.raises(StoreError, match="is not a folder"):
        store.put_tree(tmp_path / "nothing")


def test_a_tree_with_a_missing_or_corrupt_file_is_not_complete(store: Store, tmp_path: Path) -> None:
    ref = store.put_tree(make_tree(tmp_path / "in"))
    corrupt(store, digest_bytes(b"a"), b"b")
    with pytest.raises(StoreError, match="object is corrupt"):
        store.verify(ref.digest)
    with pytest.raises(StoreError, match="object is corrupt"):
        store.checkout_tree(ref.digest, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert store.has(ref.digest)
    object_path(store, digest_bytes(b"a")).unlink()
    assert not store.has(ref.digest)


def test_a_checkout_never_writes_over_a_folder_or_outside_it(store: Store, tmp_path: Path) -> None:
    ref = store.put_tree(make_tree(tmp_path / "in"))
    with pytest.raises(StoreError, match="exists already"):
        store.checkout_tree(ref.digest, tmp_path / "in")
    blob = store.put_blob(b"x")
    entry = {"path": "../escaped", "mode": "644", "size": 1, "digest": blob.digest}
    hostile = store.put_record("tree", 1, {"entries": [entry]})
    with pytest.raises(StoreError, match="leaves the folder"):
        store.checkout_tree(hostile.digest, tmp_path / "out")
    assert not (tmp_path / "escaped").exists()


def test_a_store_that_cannot_be_made_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="choose another storage folder") as caught:
        Store(tmp_path / "file" / "store")
    assert "\n" not in str(caught.value)


def test_a_file_that_changes_while_it_is_stored_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tree(tmp_path / "in")
    monkeypatch.setattr("catalog.store.digest_file", lambda _: digest_bytes(b"what it was before"))
    with pytest.raises(StoreError, match="changed while it was stored"):
        store.put_tree(folder)
    monkeypatch.undo()
    assert not store.has(digest_bytes(b"what it was before"))
    assert list(store.root.rglob(".writing-*")) == []
