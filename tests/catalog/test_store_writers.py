"""The store under many writers, a killed writer and a full disk."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.database import Catalog
from catalog.digest import digest_bytes
from catalog.store import Store, StoreError

ROOT = Path(__file__).parents[2]


WRITER = """
import sys
from pathlib import Path
from catalog.store import Store
store, writer = Store(Path(sys.argv[1])), sys.argv[3]
for number in range(20):
    shared, own = f"shared {number}".encode(), f"own {number} of {writer}".encode()
    assert store.get_blob(store.put_blob(shared).digest) == shared
    assert store.get_blob(store.put_blob(own).digest) == own
store.put_tree(Path(sys.argv[2]))
"""


def test_eight_writers_of_the_same_and_of_different_objects_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name * 1000)
    command = [sys.executable, "-c", WRITER, str(tmp_path / "store"), str(folder)]
    writers = [subprocess.Popen([*command, str(writer)], cwd=ROOT) for writer in range(8)]
    assert [process.wait(60) for process in writers] == [0] * 8
    objects = list((tmp_path / "store" / "objects").glob("*/*"))
    assert len(objects) == 20 + 8 * 20 + 3 + 1
    for path in objects:
        assert digest_bytes(path.read_bytes()) == f"sha256:{path.parent.name}{path.name}"


KILLED = """
import os, stat, sys, time
from pathlib import Path
from catalog.store import Store
store = Store(Path(sys.argv[1]))
def stop(descriptor):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        return
    print("written, not yet named", flush=True)
    time.sleep(60)
os.fsync = stop
store.put_blob(b"x" * 3_000_000)
"""


def test_a_killed_writer_leaves_no_partial_object(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept = store.put_blob(b"kept")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline().startswith("written")
        os.kill(writer.pid, signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    digest = digest_bytes(b"x" * 3_000_000)
    assert not store.has(digest)
    assert store.get_blob(kept.digest) == b"kept"
    assert store.sweep(older_than_seconds=3600) == 0
    assert store.sweep(older_than_seconds=-1) == 1
    assert store.put_blob(b"x" * 3_000_000).digest == digest
    store.verify(digest)


FULL = """
import resource, signal, sys
from pathlib import Path
from catalog.store import Store, StoreError
store = Store(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store.put_blob(b"small")
try:
    store.put_blob(b"x" * 1_000_000)
except StoreError as error:
    print(error)
"""


def test_a_write_that_the_system_cuts_short_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "File too large; free space" in done.stdout
    assert done.stdout.count("\n") == 1
    store = Store(tmp_path)
    assert store.get_blob(digest_bytes(b"small")) == b"small"
    assert [path.name for path in tmp_path.rglob(".writing-*")] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_one_line_and_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    store = Store(small_disk / "store")
    kept = store.put_blob(b"kept")
    with pytest.raises(StoreError, match="No space left on device; free space") as caught:
        store.put_blob(b"x" * 2_000_000)
    assert "\n" not in str(caught.value)
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "large").write_bytes(b"y" * 2_000_000)
    with pytest.raises(StoreError, match="No space left on device"):
        store.put_tree(folder)
    assert store.get_blob(kept.digest) == b"kept"
    assert list(small_disk.rglob(".writing-*")) == []


def publish_many(catalog: Catalog) -> None:
    for number in range(500):
        catalog.publish_request("r", 1, {"number": number, "text": "x" * 2000})


def test_a_catalog_on_a_full_disk_keeps_what_it_has(small_disk: Path) -> None:
    catalog = Catalog(small_disk / "catalog.sqlite")
    catalog.start_run("r", "ci", {}, {"release": "x"})
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError):
        ballast.write_bytes(b"z" * 2_000_000)
    assert ballast.exists()
    with pytest.raises(StoreError, match="check the disk") as caught:
        publish_many(catalog)
    assert "\n" not in str(caught.value)
    ballast.unlink()
    assert [run.run_id for run in catalog.runs()] == ["r"]
    catalog.finish_run("r", "failed", "disk was full")
    run = catalog.run("r")
    assert run is not None
    assert run.status == "failed"
