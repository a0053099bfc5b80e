"""A report through the real catalog and store."""

from pathlib import Path

import pytest
from synthetic_run import program, rows, update

from catalog.database import Catalog
from catalog.digest import digest_json
from catalog.store import Store
from report.write import UnknownRun, load_run, write_run_report


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("storage")
    catalog, store, made = Catalog(folder / "catalog.db"), Store(folder / "store"), rows()
    for generation in range(8):
        store.put_blob(program(generation).encode())
    catalog.start_run("demo-01", "laptop", made.run["config"], made.run["identities"])
    for number, row in enumerate(made.measurements):
        outcomes = row["detail"]["outcomes"]
        record = store.put_record("evaluation", 1, {"outcomes": outcomes})
        step, candidate = row["detail"].get("step", 0), row["detail"].get("candidate", -1)
        detail = {"step": step, "candidate": candidate, "evaluation": record.digest}
        key = digest_json(number)
        catalog.record_measurement(**{**row, "detail": detail, "stage_key": key})
    for row in made.decisions:
        catalog.record_decision("demo-01", row["cycle"], row["step"], row["decision"])
    for cycle in (1, 2, 3):
        body = {"updates": [update(cycle, number) for number in range(1, 6)]}
        output = store.put_record("training", 1, body)
        key = digest_json(["train", cycle])
        catalog.record_stage("demo-01", key, "train", cycle, 0, "", output, 260.0, {})
    catalog.finish_run("demo-01", "completed")
    return folder


def test_a_recorded_run_reads_back_as_the_same_view(root: Path):
    view = load_run(Catalog(root / "catalog.db"), Store(root / "store"), "demo-01")
    assert len(view.boundaries) == 12
    assert [item.correct for item in view.boundaries][:4] == [2, 22, 22, 33]
    assert all(item.layers is not None and item.families for item in view.boundaries)
    assert [name for name, _ in view.harnesses] == ["H0", "H1", "H2", "H3"]
    assert [name for name, _ in view.models] == ["M0", "M1", "M2", "M3"]
    assert len(view.updates) == 15
    assert view.updates[0].grad_norm == 1.5
    assert (view.updates[0].entropy, view.updates[0].skipped) == (2.25, "")
    assert view.updates[-1].skipped == "no_contrast"
    winner = view.decisions[0].winner
    assert winner is not None
    assert winner.diff
    assert [item.status for item in view.decisions[1].candidates] == ["compared", "compared", "dropped"]
    adopted = [item for item in view.selections if view.won(item)]
    assert [(item.cycle, item.step) for item in adopted] == [(1, 1), (2, 1), (3, 1)]


def test_the_schedule_s_order_is_kept(root: Path):
    view = load_run(Catalog(root / "catalog.db"), Store(root / "store"), "demo-01")
    first_cycle = [item.kind for item in view.measurements if item.cycle == 1]
    assert first_cycle == [
        "phase_baseline_test",
        *["step_val_parent", "step_val_candidate", "step_val_candidate"] * 2,
        "phase_end_test",
        "rl_baseline_test",
        "export_test",
    ]


def test_the_report_lands_in_the_run_folder(root: Path):
    path = write_run_report(root, "demo-01")
    assert path == root / "demo-01" / "report.html"
    assert "Run demo-01" in path.read_text(encoding="utf-8")


def test_an_unknown_run_is_one_line_that_names_the_known_ones(root: Path):
    with pytest.raises(UnknownRun, match=r"^no run 'demo-02' .* demo-01$"):
        write_run_report(root, "demo-02")


def test_a_lost_object_leaves_only_its_part_out(root: Path, tmp_path: Path):
    view = load_run(Catalog(root / "catalog.db"), Store(tmp_path), "demo-01")
    assert len(view.boundaries) == 12
    assert view.boundaries[0].layers is None
    assert view.updates == ()
