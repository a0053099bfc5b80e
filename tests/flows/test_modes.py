"""`mode=harness` with a chat endpoint as a whole run, and modes that cannot be (SCHED-09, SCHED-10)."""

import re
from collections import Counter
from pathlib import Path

import pytest

from catalog.database import Catalog
from flows.compose import ConfigError, compose_config
from tests.fixtures.command_line import rinr
from tests.fixtures.sandboxes import QUICK
from tests.fixtures.stub_policy import ScriptedPolicy, known_answers
from tests.fixtures.stub_server import StubServer, chat_from

ROOT = Path(__file__).parents[2]


def ran(root: Path, *settings: str) -> Catalog:
    done = rinr("run", "recipe=ci", "run_id=modes", "mode=harness", f"storage.root={root}", QUICK, *settings)
    assert done.returncode == 0, done.stderr[-3000:]
    return Catalog(root / "catalog.db")


@pytest.mark.slow
@pytest.mark.spec("SCHED-09", "HOST-11", "SEL-07", "SEL-09")
def test_harness_phases_alone_with_a_chat_endpoint_keep_the_model_and_train_nothing(tmp_path: Path) -> None:
    from broker.template import ChatTemplate

    tiny = ROOT / "tests/fixtures/tiny_model"
    known = known_answers([ROOT / "tests/fixtures/tiny-release"])
    policy = chat_from(ScriptedPolicy(known), ChatTemplate.load(tiny))
    with StubServer(chat_policy=policy) as stub:
        catalog = ran(
            tmp_path,
            "model=chat",
            f"model.base_url={stub.url}",
            "model.served_name=big",
            f"model.name={tiny}",
            "schedule.cycles=2",
            "schedule.aa_comparison=true",
        )
    rows = catalog.measurements("modes")
    kinds = Counter(row.kind for row in rows)
    assert len({row.model for row in rows}) == 1
    assert kinds["phase_baseline_test"] == kinds["phase_end_test"] == 2
    assert kinds["step_val_parent"] == kinds["step_val_again"] == 2
    assert not {"rl_baseline_test", "export_test"} & set(kinds)
    assert not {"train", "validate"} & {stage.name for stage in catalog.stages("modes")}
    for decision in catalog.decisions("modes"):
        assert decision.decision["again"]["fixed"] == decision.decision["again"]["broken"] == 0
    page = (tmp_path / "modes" / "steps" / "h0001-1.html").read_text(encoding="utf-8")
    [episode, *_] = re.findall(r"<code>([0-9a-f]{12})</code>", page)
    again = rinr("replay", episode, "--root", str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert "identical" in again.stdout


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
