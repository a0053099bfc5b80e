"""The whole schedule against the scripted server: real flow, real sandboxes, real updates, a tiny model.

One run of `rinr run recipe=ci`, looked at from many sides; then it is asked for again.
"""

import gzip
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from catalog.database import Catalog
from catalog.models import Measurement
from catalog.store import Store
from tests.fixtures.sandboxes import QUICK

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def rinr(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command line as a user has it."""
    return subprocess.run(
        [sys.executable, "-m", "flows", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


WATCH = """
import os, sys
def note(event, arguments, file="OPENED", me=os.getpid):
    if event == "open" and str(arguments[0]).endswith("references.jsonl"):
        with open(f"/proc/{me()}/cmdline", "rb") as words, open(file, "ab", buffering=0) as out:
            out.write(words.read().replace(b"\\0", b" ") + b"\\n")
sys.addaudithook(note)
"""
"""Every Python process of the run tells when it opens references; those without `site` take digests."""


@dataclass(frozen=True)
class Finished:
    """A finished run and how it was asked for."""

    root: Path
    settings: tuple[str, ...]
    output: str
    opened: Path
    """Command lines of the processes that opened references, one a line."""
    catalog: Catalog
    store: Store

    def measurements(self, kind: str) -> list[Measurement]:
        return [row for row in self.catalog.measurements("ci-test") if row.kind == kind]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root = tmp_path_factory.mktemp("runs")
    settings = ("recipe=ci", "run_id=ci-test", f"storage.root={root}", QUICK)
    watch = tmp_path_factory.mktemp("watch")
    # In the text, for a grader is not given the variables of its owner.
    (watch / "sitecustomize.py").write_text(WATCH.replace("OPENED", str(watch / "opened")))
    done = rinr("run", *settings, environment={"PYTHONPATH": str(watch)})
    assert done.returncode == 0, done.stderr[-3000:]
    catalog, store = Catalog(root / "catalog.db"), Store(root / "store")
    return Finished(root, settings, done.stdout + done.stderr, watch / "opened", catalog, store)


@pytest.mark.spec("SCHED-01", "SCHED-04", "SCHED-08", "SEL-07")
def test_three_cycles_with_the_five_measurements_and_no_fourth_harness_phase(finished: Finished) -> None:
    counts = Counter((row.cycle, row.kind) for row in finished.catalog.measurements("ci-test"))
    for cycle in (1, 2, 3):
        for kind in (
            "phase_baseline_test",
            "step_val_parent",
            "phase_end_test",
            "rl_baseline_test",
            "export_test",
        ):
            assert counts[cycle, kind] == 1, (cycle, kind)
    assert {cycle for cycle, _ in counts} == {1, 2, 3}
    for cycle in (1, 2, 3):
        names = [stage.name for stage in finished.catalog.stages("ci-test") if stage.cycle == cycle]
        assert names[:2] == ["designate", "evaluate"], "preflight, then the baseline Test"


@pytest.mark.spec("SCHED-02")
def test_each_phase_starts_from_what_the_last_one_left(finished: Finished) -> None:
    for cycle in (1, 2):
        export = finished.measurements("export_test")[cycle - 1]
        following = finished.measurements("phase_baseline_test")[cycle]
        assert (following.model, following.harness) == (export.model, export.harness)
    for row, decision in zip(
        finished.measurements("rl_baseline_test"), finished.catalog.decisions("ci-test"), strict=True
    ):
        assert row.harness == decision.decision["selected"]


@pytest.mark.spec("SEL-05", "SEL-07")
def test_a_program_was_adopted_only_where_it_was_strictly_better(finished: Finished) -> None:
    adopted = 0
    for row in finished.catalog.decisions("ci-test"):
        decision = row.decision
        best = max((c["correct"] for c in decision["candidates"]), default=0)
        assert decision["adopted"] == (best > decision["parent_correct"])
        adopted += decision["adopted"]
    assert adopted >= 1, "the scripted server rewards a better program"
    assert len(finished.measurements("step_val_parent")) == 3


@pytest.mark.spec("EXP-02", "RL-12")
def test_every_export_is_another_model_with_complete_test_coverage(finished: Finished) -> None:
    exports = finished.measurements("export_test")
    assert len({row.model for row in exports}) == 3
    assert all(row.total == 4 for row in exports)
    for row in exports:
        names = {entry.path for entry in finished.store.tree_manifest(row.model)}
        assert {"config.json", "tokenizer.json"} <= names
        assert not any("optimizer" in name for name in names)


@pytest.mark.spec("SCHED-05")
def test_the_cursor_moves_through_the_train_tasks_across_phases(finished: Finished) -> None:
    drawn: list[str] = []
    for stage in finished.catalog.stages("ci-test"):
        if stage.name == "collect":
            record = finished.store.get_record(stage.output, "interactions")
            drawn += [item["task"]["id"] for item in record["interactions"]]
    assert len(drawn) == 12
    assert len(set(drawn[:6])) == 6, "no task comes twice before the list is exhausted"


@pytest.mark.spec("HAND-01", "EXP-03")
def test_each_harness_phase_published_an_immutable_request(finished: Finished) -> None:
    requests = [
        stage.parameters["inputs"]["request"]
        for stage in finished.catalog.stages("ci-test")
        if stage.name == "train"
    ]
    assert len(set(requests)) == 3
    for digest in requests:
        request = finished.catalog.request(digest)
        assert {
            "harness",
            "model",
            "release",
            "verifier",
            "runtime",
            "host",
            "guidance",
            "code",
            "contract",
        } <= set(request)
        result = finished.catalog.result(digest)
        assert result is not None
        assert result["validated"] is True
        # How far trainer, rollout engine and loaded export were apart, and what was loaded.
        # `engine_mean` is None where the engine computes in float32.
        assert all(gap <= 1e-3 for gap in result["proof"]["gaps"].values() if gap is not None)
        assert result["proof"]["tokenizer"].startswith("sha256:")


@pytest.mark.spec("EVID-02")
def test_no_reference_reached_what_proposes_a_sandbox_or_anything_that_was_written(
    finished: Finished,
) -> None:
    root = ROOT / "tests/fixtures/tiny-release/private/references.jsonl"
    canaries = {json.loads(line)["canary"].encode() for line in root.read_text().splitlines()}
    assert canaries
    looked = Counter(stage.name for stage in finished.catalog.stages("ci-test"))
    assert {"collect", "propose", "preflight", "evaluate", "train"} <= looked.keys()
    for path in [path for path in finished.root.rglob("*") if path.is_file()]:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        assert not any(canary in data for canary in canaries), path
    assert not any(canary.decode() in finished.output for canary in canaries)


@pytest.mark.spec("EVID-02")
def test_of_all_processes_of_a_run_only_its_graders_open_references(finished: Finished) -> None:
    opened = finished.opened.read_text().splitlines()
    graders = [line for line in opened if "-m verifier.grader_child " in line]
    # The scripted model is a double that must know what a right answer is.
    doubles = [line for line in opened if "tests.fixtures.stub_server" in line]
    assert graders
    assert doubles
    assert len(graders) + len(doubles) == len(opened), opened


@pytest.mark.spec("REP-01")
def test_the_end_table_shows_denominators_and_the_report_exists(finished: Finished) -> None:
    assert "/4" in finished.output.replace(" ", "").replace("of", "/")
    assert (finished.root / "ci-test" / "report.html").stat().st_size > 10_000


def test_asking_again_for_a_finished_run_calls_no_model_and_is_quick(finished: Finished) -> None:
    before = len(finished.catalog.stages("ci-test"))
    started = time.monotonic()
    again = rinr("run", *finished.settings)
    assert again.returncode == 0, again.stderr
    assert "report:" in again.stdout
    assert len(finished.catalog.stages("ci-test")) == before
    # Not a benchmark: a run that opened Prefect or a server would need far longer.
    assert time.monotonic() - started < 30


def test_the_same_run_id_with_other_settings_is_refused(finished: Finished) -> None:
    other = rinr("run", *finished.settings, "seed=2")
    assert other.returncode == 4
    assert "other settings" in other.stderr
    assert other.stderr.count("\n") == 1


def test_nothing_is_left_running(finished: Finished) -> None:
    for status in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert str(finished.root).encode() not in (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
