"""`mode=model` as whole runs against the scripted server: one fixed program, RL phases alone (SCHED-09)."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.pass_at import Sampled, pass_at
from catalog.database import Catalog
from catalog.models import Measurement
from catalog.store import Store
from flows.compose import compose_config
from rl.contract import RlContract
from rl.embedded.periodic import Periodic
from rl.errors import EndpointFixed, TokenIdsNeeded
from tasks.config import check_trainable, config_identity
from tasks.first_harness import UnknownHarness, first_harness
from tests.fixtures.command_line import EXAMPLE, ROOT, rinr
from tests.fixtures.sandboxes import QUICK

SIZES = ("rl.attempts=8", "rl.evaluate_every=1", "schedule.pass_attempts=4")


def words(root: Path, program: Path, *more: str) -> list[str]:
    named = ("recipe=ci", "mode=model", "run_id=m", f"storage.root={root}", QUICK, f"harness={program}")
    return ["run", *named, *SIZES, *more]


@dataclass(frozen=True)
class Ran:
    root: Path
    program: Path
    catalog: Catalog
    store: Store
    output: str

    def rows(self, kind: str) -> list[Measurement]:
        return [row for row in self.catalog.measurements("m") if row.kind == kind]

    def sampled(self, kind: str) -> Sampled:
        [row] = self.rows(kind)
        return Sampled.model_validate(self.store.get_record(row.detail["sampled"], "sampled"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    root = tmp_path_factory.mktemp("model-mode")
    program = root / "example.py"
    program.write_text(EXAMPLE)
    done = rinr(*words(root, program, "schedule.cycles=2"))
    assert done.returncode == 0, done.stderr[-3000:]
    catalog, store = Catalog(root / "catalog.db"), Store(root / "store")
    return Ran(root, program, catalog, store, done.stdout + done.stderr)


@pytest.mark.slow
@pytest.mark.spec("SCHED-09", "SCHED-02")
def test_the_program_stays_and_the_models_follow_each_other(ran: Ran) -> None:
    names = Counter(stage.name for stage in ran.catalog.stages("m"))
    assert not {"designate", "collect", "propose", "preflight", "select"} & set(names)
    assert (names["train"], names["validate"], names["sample"]) == (2, 2, 2)
    rows = ran.catalog.measurements("m")
    assert len({row.harness for row in rows}) == 1
    assert ran.store.get_blob(rows[0].harness).decode() == EXAMPLE
    starts, exports = ran.rows("rl_baseline_test"), ran.rows("export_test")
    assert [row.model for row in starts[1:]] == [row.model for row in exports[:-1]]
    assert ran.rows("pass_before")[0].model == starts[0].model
    assert ran.rows("pass_after")[0].model == exports[-1].model
    run = ran.catalog.run("m")
    assert run is not None
    assert run.identities["harness"] == rows[0].harness
    assert ran.catalog.decisions("m") == []


@pytest.mark.slow
@pytest.mark.spec("SCHED-09", "REP-01")
def test_pass_at_k_before_and_after_rests_on_the_same_attempts_and_is_kept_apart_from_accuracy(
    ran: Ran,
) -> None:
    before, after = ran.sampled("pass_before"), ran.sampled("pass_after")
    assert (before.attempts, before.seed, before.split) == (after.attempts, after.seed, "test")
    assert [tally.task_id for tally in before.tallies] == [tally.task_id for tally in after.tallies]
    for kind, sampled in (("pass_before", before), ("pass_after", after)):
        [row] = ran.rows(kind)
        assert (row.correct, row.total) == (sampled.correct, 16)
        assert list(row.detail["pass_at"]) == ["1", "2", "4"]
        for k, value in row.detail["pass_at"].items():
            each = [pass_at(int(k), tally.correct, 4) for tally in sampled.tallies]
            assert value == pytest.approx(sum(each) / len(each))
    # The scripted answers do not depend on weights: the same attempts give the same answers.
    gain = ran.rows("pass_after")[0].detail["gain"]
    assert {tuple(entry.values()) for entry in gain.values()} == {(0.0, 0.0, 0.0)}
    assert 0 < before.correct < before.total
    page = (ran.root / "m" / "report.html").read_text()
    assert "pass@k" in page
    assert "4 attempts of each of 4 Test tasks" in page
    table = page[page.index("Accuracy at each boundary") : page.index("<h2>pass@k</h2>")]
    assert f"{before.correct}/16" not in table
    assert "pass@k on Test" in ran.output


@pytest.mark.slow
@pytest.mark.spec("SCHED-09", "RL-11", "REP-02")
def test_val_between_updates_is_measured_at_the_start_after_each_update_and_chooses_nothing(ran: Ran) -> None:
    rows = ran.rows("periodic_val")
    assert [(row.cycle, row.detail["step"]) for row in rows] == [(c, u) for c in (1, 2) for u in (0, 1, 2)]
    assert {row.split for row in rows} == {"val"}
    assert {row.total for row in rows} == {
        len(ran.store.get_record(rows[0].detail["evaluation"], "evaluation")["outcomes"])
    }
    assert len({row.model for row in rows}) == 6, "each has the weights of its moment"
    assert rows[0].model == ran.rows("rl_baseline_test")[0].model
    page = (ran.root / "m" / "report.html").read_text()
    assert "Val between updates" in page
    assert "chose nothing in this run" in page
    assert "chose the programs" not in page


@pytest.mark.slow
@pytest.mark.spec("SCHED-09")
def test_another_run_takes_the_program_by_its_digest(ran: Ran) -> None:
    digest = ran.rows("pass_before")[0].harness
    config = compose_config(["recipe=ci", "mode=model", f"harness={digest}", f"storage.root={ran.root}"])
    assert first_harness(config, ran.store, ran.catalog).code == EXAMPLE
    none = compose_config(["recipe=ci", "mode=model", "harness=run:m"])
    with pytest.raises(UnknownHarness, match="that run selected no program"):
        first_harness(none, ran.store, ran.catalog)


@pytest.mark.slow
@pytest.mark.spec("SCHED-09")
def test_a_finished_run_is_found_and_nothing_runs_again(ran: Ran) -> None:
    before = len(ran.catalog.stages("m"))
    again = rinr(*words(ran.root, ran.program, "schedule.cycles=2"))
    assert again.returncode == 0, again.stderr
    assert len(ran.catalog.stages("m")) == before


@pytest.mark.slow
@pytest.mark.spec("SCHED-09", "CONT-03")
def test_a_run_killed_in_training_resumes_with_its_stages_and_trains_from_the_start(tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(EXAMPLE)
    arguments = words(tmp_path / "runs", program, "schedule.cycles=1", "rl.updates=4")
    run = subprocess.Popen(
        [sys.executable, "-m", "flows", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    progress = tmp_path / "runs/m/r0001/train/progress.jsonl"
    deadline = time.monotonic() + 120
    while not (progress.exists() and '"update": 1' in progress.read_text()):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    catalog = Catalog(tmp_path / "runs/catalog.db")
    kept = {stage.key for stage in catalog.stages("m")}
    assert {stage.name for stage in catalog.stages("m")} == {"sample", "evaluate"}
    # The file has changed meanwhile: the run keeps its program.
    program.write_text(EXAMPLE + "# other\n")
    refused = rinr(*arguments)
    assert refused.returncode == 4
    assert re.search(r"harness was 'sha256:\w+' and is now", refused.stderr)
    program.write_text(EXAMPLE)
    done = rinr(*arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "pass@k before: 16 episodes" not in done.stderr, "found, not made again"
    assert kept < {stage.key for stage in catalog.stages("m")}
    assert len([row for row in catalog.measurements("m") if row.kind == "periodic_val"]) == 5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere.py", "cannot be read"),
        ("run:nobody", "no such run in this storage"),
        ("sha256:" + "0" * 64, "is no program of this storage"),
        ("broken.py", "is no Python program"),
        ("async.py", "run"),
    ],
)
def test_a_harness_that_names_nothing_is_refused_in_one_line(
    name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("def run(:\n")
    Path("async.py").write_text("async def run(task, api): ...\n")
    config = compose_config(["recipe=ci", "mode=model", f"harness={name}"])
    with pytest.raises(UnknownHarness, match=expected) as caught:
        first_harness(config, Store(tmp_path / "store"), Catalog(tmp_path / "catalog.db"))
    assert "\n" not in str(caught.value)


@pytest.mark.spec("HOST-10", "HOST-11")
def test_a_service_that_cannot_answer_for_an_export_is_refused_before_anything_starts() -> None:
    def config(*settings: str) -> None:
        check_trainable(compose_config(["model=endpoint", "model.name=x", *settings]))

    for settings in (
        ("mode=cycle",),
        ("mode=model", "schedule.cycles=1"),
        ("mode=model", "schedule.cycles=3"),
    ):
        with pytest.raises(EndpointFixed, match="answers for the base model only"):
            config(*settings)
    config("mode=harness")
    config("mode=cycle", "schedule.cycles=1")
    config("mode=model", "schedule.cycles=1", "schedule.pass_attempts=0")
    chat = compose_config(["model=chat", "mode=model", "model.base_url=http://x", "model.served_name=y"])
    with pytest.raises(TokenIdsNeeded):
        check_trainable(chat)


@pytest.mark.spec("RL-11", "HAND-01")
def test_co_evolution_keeps_its_contract_and_its_identity() -> None:
    plain = RlContract()
    assert "evaluate_every" not in plain.model_dump(mode="json")
    assert plain.digest == RlContract(evaluate_every=0).digest != RlContract(evaluate_every=1).digest
    cycle = compose_config(["recipe=ci"])
    other = cycle.model_copy(update={"schedule": cycle.schedule.model_copy(update={"pass_attempts": 3})})
    assert config_identity(cycle) == config_identity(other), "where it is not asked it changes nothing"


@pytest.mark.spec("RL-11")
@pytest.mark.parametrize(
    ("every", "updates", "expected"),
    [(0, 4, []), (1, 3, [0, 1, 2, 3]), (2, 5, [0, 2, 4, 5]), (9, 4, [0, 4])],
)
def test_evaluations_are_due_at_the_start_at_the_end_and_between(
    every: int, updates: int, expected: list[int]
) -> None:
    class TheJob:
        contract = RlContract(evaluate_every=every, updates=updates)

    periodic = Periodic(TheJob(), None, None)  # pyright: ignore[reportArgumentType]
    assert [update for update in range(updates + 1) if periodic.due(update)] == expected


@pytest.mark.spec("RL-11", "SEL-04")
async def test_a_lost_evaluation_is_a_missing_point_and_never_the_end_of_the_training(tmp_path: Path) -> None:
    from broker.errors import ModelUnavailable
    from broker.model import Completion, Sampling
    from rl.services import Progress
    from tests.fixtures.episodes import ASK_AND_SUBMIT, make_broker
    from tests.fixtures.fake_sandbox import FakeFactory

    class Gone:
        async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
            raise ModelUnavailable("gone")

    class TheJob:
        contract = RlContract(evaluate_every=1, updates=2)
        harness_code = ASK_AND_SUBMIT
        seed = 1

    progress = Progress(tmp_path)
    periodic = Periodic(TheJob(), make_broker(Gone(), FakeFactory(), retries=0), progress)  # pyright: ignore[reportArgumentType]
    await periodic.at(1)
    progress.close()
    [point] = periodic.done
    assert point.evaluation is None
    assert point.lost == "ModelUnavailable: gone"
    [event] = map(json.loads, (tmp_path / "progress.jsonl").read_text().splitlines())
    assert (event["event"], event["lost"]) == ("evaluation", point.lost)
