"""An evaluation is whole or it is nothing, and each comparison has its own (SEL-04, SEL-07)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.attempt import Attempt
from broker.broker import Broker
from broker.evaluation import CoverageError, summarise
from broker.harness import Harness
from broker.limiter import Limiter
from broker.model import Completion, Sampling
from broker.record import GradedEpisode
from catalog.database import Catalog
from catalog.digest import digest_bytes
from catalog.store import Ref, Store
from harness_lab.control_world import make_world
from report.progress import RunProgress
from tasks.measure import evaluation_key, measure, split_of
from tasks.servers import ServerLosses
from tasks.session import Session
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, make_broker
from verifier.grade import Grader
from verifier.release import Release

MODEL = Ref(kind="tree", digest=digest_bytes(b"m0"), size=1)
HARNESS = Harness(code=ASK_AND_SUBMIT)


class DiesAfter(ScriptedModel):
    """Answers so many questions, and then the process is gone."""

    def __init__(self, answers: int) -> None:
        super().__init__("<answer>A</answer>")
        self.left = answers

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        if not self.left:
            raise RuntimeError("killed")
        self.left -= 1
        return await super().complete(prompt_ids, sampling)


@pytest.fixture(scope="module")
def ninety(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("release") / "ninety"
    make_world(folder, val=90, noise=0.0, seed=1, shuffled=False)
    return Release.load(folder)


def a_session(root: Path, release: Release, model: ScriptedModel) -> Session:
    """As much of a session as an evaluation asks for."""
    plain = make_broker(model)
    broker = Broker(
        model=model,
        template=plain.template,
        sandboxes=plain.sandboxes,
        grader=Grader(release),
        release=release,
        budgets=plain.budgets,
        guidance="",
        limiter=Limiter(1),
    )

    async def serve(_model: Ref) -> Broker:
        return broker

    catalog = Catalog(root / "catalog.db")
    catalog.start_run("r", "ci", {}, {})
    return cast(
        Session,
        SimpleNamespace(
            run_id="r",
            store=Store(root / "store"),
            catalog=catalog,
            release=release,
            broker=serve,
            progress=RunProgress(live=False),
            losses=ServerLosses(),
            config=SimpleNamespace(seed=1),
            harness=lambda _ref: HARNESS,
            identities=lambda: {"release": release.digest},
        ),
    )


@pytest.mark.spec("SEL-04")
async def test_case_t16_a_killed_evaluation_leaves_no_score_and_the_next_one_runs_all_90(
    tmp_path: Path, ninety: Release
) -> None:
    program = Ref(kind="blob", digest=HARNESS.digest, size=1)
    killed = a_session(tmp_path, ninety, DiesAfter(25))
    with pytest.raises(RuntimeError, match="killed"):
        await measure(killed, "step_val_parent", 1, 1, MODEL, program, -1, "val")
    assert killed.catalog.measurements("r") == []
    assert killed.catalog.stages("r") == []
    again = a_session(tmp_path, ninety, DiesAfter(90))
    await measure(again, "step_val_parent", 1, 1, MODEL, program, -1, "val")
    [row] = again.catalog.measurements("r")
    assert (row.total, row.split) == (90, "val")


@pytest.mark.spec("SEL-04")
async def test_case_t16_25_episodes_of_90_tasks_give_no_mean(tmp_path: Path, ninety: Release) -> None:
    session = a_session(tmp_path, ninety, ScriptedModel("<answer>A</answer>"))
    broker = await session.broker(MODEL)
    tasks = ninety.split("val")
    episodes = await broker.run_all([Attempt(task, HARNESS, "evaluation", 0.0, 1) for task in tasks[:25]])
    graded = [episode for episode in episodes if isinstance(episode, GradedEpisode)]
    with pytest.raises(CoverageError, match="25 episodes for 90 tasks"):
        summarise(HARNESS, "val", tasks, graded, seed=1)


@pytest.mark.spec("SEL-07")
def test_no_two_comparisons_share_an_evaluation(tmp_path: Path, ninety: Release) -> None:
    session = a_session(tmp_path, ninety, ScriptedModel(""))
    program = Ref(kind="blob", digest=HARNESS.digest, size=1)

    def key(role: str, cycle: int, step: int, index: int = -1) -> str:
        return evaluation_key(session, role, cycle, step, MODEL, program, index, "val").digest

    same_program = [
        key("step_val_parent", 1, 1),
        key("step_val_parent", 1, 2),
        key("step_val_parent", 2, 1),
        key("step_val_again", 1, 1),
        key("step_val_candidate", 1, 1, 0),
        key("step_val_candidate", 1, 1, 1),
    ]
    assert len(set(same_program)) == len(same_program)
    assert key("step_val_parent", 1, 1) == same_program[0], "a resumed run finds its own"


@pytest.mark.spec("SCHED-08", "SCHED-10")
@pytest.mark.parametrize(
    ("role", "split"),
    [
        ("phase_baseline_test", "test"),
        ("phase_end_test", "test"),
        ("rl_baseline_test", "test"),
        ("step_val_parent", "val"),
        ("step_val_candidate", "val"),
        ("step_val_again", "val"),
        ("validation_initial", "val"),
        ("validation_selected", "val"),
    ],
)
def test_each_role_reads_its_split(role: str, split: Any) -> None:
    assert split_of(role) == split
