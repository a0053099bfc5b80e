"""`mode=harness`, also with a chat endpoint, and the adaptation protocol, as whole runs (SCHED-09, 10)."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from catalog.database import Catalog
from catalog.store import Store
from flows.compose import ConfigError, compose_config
from tests.fixtures.command_line import rinr
from tests.fixtures.sandboxes import QUICK
from tests.fixtures.stub_policy import ScriptedPolicy, known_answers
from tests.fixtures.stub_server import StubServer, chat_from

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    catalog: Catalog
    store: Store
    page: str
    output: str

    def kinds(self) -> Counter[str]:
        return Counter(row.kind for row in self.catalog.measurements("modes"))


def ran(root: Path, *settings: str) -> Ran:
    done = rinr("run", "recipe=ci", "run_id=modes", "mode=harness", f"storage.root={root}", QUICK, *settings)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (root / "modes" / "report.html").read_text(encoding="utf-8")
    return Ran(Catalog(root / "catalog.db"), Store(root / "store"), page, done.stdout + done.stderr)


@pytest.mark.slow
@pytest.mark.spec("SCHED-09", "HOST-11", "SEL-07", "SEL-09")
def test_harness_phases_alone_with_a_chat_endpoint_keep_the_model_and_train_nothing(tmp_path: Path) -> None:
    from broker.template import ChatTemplate

    tiny = ROOT / "tests/fixtures/tiny_model"
    known = known_answers([ROOT / "tests/fixtures/tiny-release"])
    policy = chat_from(ScriptedPolicy(known), ChatTemplate.load(tiny))
    with StubServer(chat_policy=policy) as stub:
        run = ran(
            tmp_path,
            "model=chat",
            f"model.base_url={stub.url}",
            "model.served_name=big",
            f"model.name={tiny}",
            "schedule.cycles=2",
            "schedule.aa_comparison=true",
        )
    rows = run.catalog.measurements("modes")
    assert len({row.model for row in rows}) == 1
    assert run.kinds()["phase_baseline_test"] == run.kinds()["phase_end_test"] == 2
    assert run.kinds()["step_val_parent"] == run.kinds()["step_val_again"] == 2
    assert not {"rl_baseline_test", "export_test"} & set(run.kinds())
    assert not {"train", "validate"} & {stage.name for stage in run.catalog.stages("modes")}
    for decision in run.catalog.decisions("modes"):
        assert decision.decision["again"]["fixed"] == decision.decision["again"]["broken"] == 0
    page = (tmp_path / "modes" / "steps" / "h0001-1.html").read_text(encoding="utf-8")
    [episode, *_] = re.findall(r"<code>([0-9a-f]{12})</code>", page)
    again = rinr("replay", episode, "--root", str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert "identical" in again.stdout


@pytest.mark.slow
@pytest.mark.spec("SCHED-05", "SCHED-10", "REP-02")
def test_the_adaptation_protocol_updates_once_a_batch_and_looks_at_val_once(tmp_path: Path) -> None:
    run = ran(tmp_path, "schedule.protocol=adaptation", "schedule.cycles=1", "schedule.steps=4")
    assert run.kinds() == {"adaptation_batch": 4, "validation_initial": 1, "validation_selected": 1}
    rows = run.catalog.measurements("modes")
    batches = [row for row in rows if row.kind == "adaptation_batch"]
    assert [row.detail["step"] for row in batches] == [1, 2, 3, 4]
    assert {row.split for row in batches} == {"train"}
    assert len(run.catalog.decisions("modes")) == 4
    names = [stage.name for stage in run.catalog.stages("modes")]
    assert names[-2:] == ["evaluate", "evaluate"], "Val comes last, when everything is chosen"
    assert names.count("collect") == names.count("score-batch") == 4
    # The best of the batches is what Val compares with the first program.
    shares: dict[str, list[int]] = {}
    for row in batches:
        totals = shares.setdefault(row.harness, [0, 0])
        totals[0], totals[1] = totals[0] + row.correct, totals[1] + row.total
    [initial] = [row for row in rows if row.kind == "validation_initial"]
    [selected] = [row for row in rows if row.kind == "validation_selected"]
    assert initial.harness == batches[0].harness
    assert shares[selected.harness][0] / shares[selected.harness][1] == max(a / b for a, b in shares.values())
    assert "Batch accuracy" in run.page


@pytest.mark.spec("SCHED-09", "SCHED-10", "RL-11")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["harness=h.py"], "is the fixed program of mode=model"),
        (["rl.evaluate_every=2"], "RL-11: in-trainer evaluation is off in co-evolution"),
        (["mode=harness", "rl.evaluate_every=2"], "RL-11"),
        (["mode=model", "schedule.trigger=improvement"], "which only mode=cycle has"),
        (["mode=model", "rl.evaluate_every=2", "trainer.kind=skyrl"], "needs trainer.kind=embedded"),
        (["schedule.protocol=adaptation"], "needs mode=harness and schedule.cycles=1"),
        (["mode=harness", "schedule.protocol=adaptation"], "schedule.cycles=1"),
        (["mode=harness", "schedule.trigger=improvement"], "which only mode=cycle has"),
        (["mode=everything"], "setting mode:"),
    ],
)
def test_a_mode_that_cannot_be_is_refused_in_one_line(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(overrides)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.spec("SCHED-10")
def test_the_adaptation_recipe_has_the_paper_s_numbers() -> None:
    config = compose_config(["recipe=adaptation"])
    schedule = config.schedule
    assert (schedule.steps, schedule.interactions, schedule.candidates) == (24, 12, 1)
    assert schedule.steps * schedule.interactions == 288
    assert (config.mode, schedule.protocol, schedule.cycles) == ("harness", "adaptation", 1)
    assert config.budgets.user_turns == 1
