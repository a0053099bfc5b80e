"""The catalog's runs, stages, artifacts, measurements and decisions."""

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from catalog.database import Catalog, IdentityMismatch, StoreError
from catalog.store import Ref

ROOT = Path(__file__).parents[2]
OUTPUT = Ref(kind="record", digest="sha256:" + "a" * 64, size=10)
IDENTITIES = {"release": "sha256:r", "model": "sha256:m"}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = Catalog(tmp_path / "catalog.sqlite")
    made.start_run("run", "ci", {"seed": 1}, IDENTITIES)
    return made


def record_stage(catalog: Catalog, key: str, run_id: str = "run", output: Ref = OUTPUT) -> Any:
    return catalog.record_stage(run_id, key, "evaluate", 1, 2, "parent", output, 1.5, {"split": "val"})


def measure(catalog: Catalog, **changes: Any) -> None:
    values: dict[str, Any] = {
        "run_id": "run", "cycle": 1, "kind": "val", "split": "val", "harness": "h", "model": "m",
        "correct": 3, "total": 10, "valid": 5, "stage_key": "k", "detail": {"answers": (1, 2)},
    }  # fmt: skip
    catalog.record_measurement(**(values | changes))


def test_a_run_is_kept_with_its_times_in_utc(catalog: Catalog) -> None:
    catalog.finish_run("run", "completed")
    run = catalog.run("run")
    assert run is not None
    assert (run.recipe, run.config, run.identities, run.status) == (
        "ci",
        {"seed": 1},
        IDENTITIES,
        "completed",
    )
    assert run.started.tzinfo == UTC
    assert run.finished is not None
    assert 0 <= (datetime.now(UTC) - run.finished).total_seconds() < 60
    assert catalog.run("other") is None
    with pytest.raises(KeyError):
        catalog.finish_run("other", "failed")


def test_starting_a_run_again_needs_the_same_identities_and_names_each_difference(catalog: Catalog) -> None:
    catalog.finish_run("run", "failed", "Ctrl-C")
    with pytest.raises(IdentityMismatch) as caught:
        catalog.start_run("run", "ci", {"seed": 1}, {"release": "sha256:other", "verifier": "v"})
    for part in ("'run'", "release was 'sha256:r' and is now 'sha256:other'", "model", "verifier"):
        assert part in str(caught.value)
    run = catalog.run("run")
    assert run is not None
    assert run.status == "failed"
    catalog.start_run("run", "ci", {"seed": 1}, IDENTITIES)
    run = catalog.run("run")
    assert run is not None
    assert (run.status, run.finished) == ("running", None)
    assert len(catalog.runs()) == 1


def test_of_two_stages_under_one_key_the_first_is_kept(catalog: Catalog) -> None:
    catalog.start_run("later", "ci", {}, IDENTITIES)
    assert catalog.stage("k") is None
    record_stage(catalog, "k")
    kept = record_stage(catalog, "k", "later", OUTPUT.model_copy(update={"digest": "sha256:" + "b" * 64}))
    found = catalog.stage("k")
    assert found is not None
    assert kept.output == found.output == OUTPUT.digest
    assert found.run_id == "run"
    assert found.parameters == {"split": "val"}
    assert [stage.key for stage in catalog.stages("run")] == ["k"]
    assert catalog.stages("later") == []


def test_a_stage_of_an_unknown_run_is_refused(catalog: Catalog) -> None:
    with pytest.raises(IntegrityError):
        record_stage(catalog, "k", "no such run")


def test_an_artifact_keeps_its_first_maker(catalog: Catalog) -> None:
    catalog.record_artifact(OUTPUT, "evaluation", "k1")
    catalog.record_artifact(OUTPUT, "evaluation", "k2")
    found = catalog.artifact(OUTPUT.digest)
    assert found is not None
    assert (found.made_by_stage, found.content_schema, found.size) == ("k1", "evaluation", 10)


@pytest.mark.spec("REP-01")
def test_a_measurement_keeps_its_denominators_and_is_recorded_once(catalog: Catalog) -> None:
    measure(catalog)
    measure(catalog)
    measure(catalog, split="test", kind="phase_end")
    recorded = catalog.measurements("run")
    assert [(m.kind, m.correct, m.valid, m.total) for m in recorded] == [
        ("val", 3, 5, 10),
        ("phase_end", 3, 5, 10),
    ]
    with pytest.raises(IdentityMismatch, match="correct was 3 and is now 4"):
        measure(catalog, correct=4)


@pytest.mark.spec("REP-01")
@pytest.mark.parametrize("counts", [(6, 10, 5), (-1, 10, 5), (0, 0, 0), (3, 4, 5)])
def test_impossible_counts_are_refused(catalog: Catalog, counts: tuple[int, int, int]) -> None:
    correct, total, valid = counts
    with pytest.raises(ValueError, match="cannot be"):
        measure(catalog, correct=correct, total=total, valid=valid)


def test_a_decision_is_recorded_once_and_never_changed(catalog: Catalog) -> None:
    decision = {"status": "adopted", "candidates": ("a", "b"), "score": 0.5}
    catalog.record_decision("run", 2, 1, {"status": "kept"})
    catalog.record_decision("run", 1, 1, decision)
    catalog.record_decision("run", 1, 1, decision)
    assert [(d.cycle, d.decision["status"]) for d in catalog.decisions("run")] == [
        (1, "adopted"),
        (2, "kept"),
    ]
    with pytest.raises(IdentityMismatch, match="status was 'adopted' and is now 'kept'"):
        catalog.record_decision("run", 1, 1, decision | {"status": "kept"})


def test_the_file_is_in_wal_mode_and_opens_again(catalog: Catalog, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "catalog.sqlite") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    again = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}")
    assert [run.run_id for run in again.runs()] == ["run"]


def test_a_file_that_is_no_catalog_or_a_newer_one_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, only a text that is long enough to be one" * 20)
    with pytest.raises(StoreError, match="file is not a database") as caught:
        Catalog(tmp_path / "text")
    assert "\n" not in str(caught.value)
    with sqlite3.connect(tmp_path / "newer") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="upgrade rinr"):
        Catalog(tmp_path / "newer")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="choose another storage folder"):
        Catalog(tmp_path / "file" / "catalog.sqlite")


RECORDER = """
import sys
from catalog.database import Catalog
from catalog.store import Ref
catalog, output = Catalog(sys.argv[1]), Ref(kind="record", digest="sha256:" + "a" * 64, size=10)
catalog.start_run("shared", "ci", {}, {"release": "r"})
for number in range(15):
    for key in (f"{sys.argv[2]}-{number}", f"same-{number}"):
        catalog.record_stage("shared", key, "evaluate", 1, 2, "parent", output, 1.5, {})
"""


def test_several_processes_share_one_catalog_from_its_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "fresh" / "catalog.sqlite"
    command = [sys.executable, "-c", RECORDER, str(path)]
    writers = [subprocess.Popen([*command, str(writer)], cwd=ROOT) for writer in range(3)]
    assert [process.wait(60) for process in writers] == [0] * 3
    assert len(Catalog(path).stages("shared")) == 3 * 15 + 15


def test_several_threads_share_one_catalog(catalog: Catalog) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: record_stage(catalog, f"k{number % 10}"), range(40)))
    assert len(catalog.stages("run")) == 10
