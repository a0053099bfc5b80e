"""The paper's adaptation at its own size: 24 batches of 12 conversations, one update after each."""

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import pytest

from catalog.database import Catalog
from catalog.models import Measurement
from tests.fixtures.command_line import ROOT
from tests.fixtures.sandboxes import QUICK

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Ran:
    catalog: Catalog
    page: str

    def rows(self, kind: str) -> list[Measurement]:
        return [row for row in self.catalog.measurements("paper") if row.kind == kind]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Recipe `adaptation` on the bundled release, with the scripted model."""
    root = tmp_path_factory.mktemp("runs")
    settings = ["recipe=adaptation", "model=stub", "concurrency=16", QUICK]
    done = subprocess.run(
        [sys.executable, "-m", "flows", "run", *settings, "run_id=paper", f"storage.root={root}"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    page = (root / "paper" / "report.html").read_text(encoding="utf-8")
    return Ran(Catalog(root / "catalog.db"), page)


@pytest.mark.spec("SCHED-10", "REP-02")
def test_there_are_24_updates_of_12_conversations_on_train_and_two_looks_at_val(ran: Ran) -> None:
    kinds = Counter(row.kind for row in ran.catalog.measurements("paper"))
    assert kinds == {"adaptation_batch": 24, "validation_initial": 1, "validation_selected": 1}
    batches = ran.rows("adaptation_batch")
    assert [(row.detail["step"], row.total, row.split) for row in batches] == [
        (number, 12, "train") for number in range(1, 25)
    ]
    assert len(ran.catalog.decisions("paper")) == 24
    names = [stage.name for stage in ran.catalog.stages("paper")]
    assert names.count("collect") == names.count("propose") == names.count("score-batch") == 24
    assert names[-2:] == ["evaluate", "evaluate"], "Val comes last, when everything is chosen"


@pytest.mark.spec("SCHED-10")
def test_the_program_with_the_best_share_of_its_batches_is_what_val_compares_with_the_first(ran: Ran) -> None:
    shares: dict[str, list[int]] = {}
    for row in ran.rows("adaptation_batch"):
        totals = shares.setdefault(row.harness, [0, 0])
        totals[0], totals[1] = totals[0] + row.correct, totals[1] + row.total
    [initial], [selected] = ran.rows("validation_initial"), ran.rows("validation_selected")
    assert initial.harness == ran.rows("adaptation_batch")[0].harness
    best = max(right / total for right, total in shares.values())
    assert shares[selected.harness][0] / shares[selected.harness][1] == best
    assert selected.correct > initial.correct


@pytest.mark.spec("SCHED-10")
def test_the_page_shows_every_batch_of_the_learning_curve_and_the_best_so_far(ran: Ran) -> None:
    [figure] = [part for part in ran.page.split("<figure") if "Batch accuracy" in part]
    drawing = figure.split("</figure>")[0]
    for words in ("a batch of 12 conversations, by program", "best so far", ">24<", ">H0<"):
        assert words in drawing, words
    assert ran.page.count(" applied</span>") == sum(
        row.decision["adopted"] for row in ran.catalog.decisions("paper")
    )
