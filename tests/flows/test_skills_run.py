"""`auxiliary=skills` as a whole run: skill files are adopted, and held-out words reach nobody (PROP-09)."""

import html
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from catalog.database import Catalog
from catalog.store import Store
from harness_lab.seed import seed_harness
from harness_lab.skill_file import SkillFile, read_skill_file
from harness_lab.words import WITHHELD
from tests.fixtures.chat_answers import HINT, role_of, skilled
from tests.fixtures.command_line import ROOT
from tests.fixtures.episodes import release
from tests.fixtures.faulty_server import Asked, FaultyServer
from tests.fixtures.sandboxes import QUICK

REFERENCES = ROOT / "tests/fixtures/tiny-release/private/references.jsonl"
CANARIES = [json.loads(line)["canary"] for line in REFERENCES.read_text().splitlines()]
SECRET = release().split("val")[0].prompt

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Finished:
    """The ci schedule's harness phases with the improver `skills`, and all that its auxiliary was sent."""

    catalog: Catalog
    store: Store
    asked: list[Asked]
    folder: Path

    def decisions(self) -> list[dict[str, Any]]:
        return [row.decision for row in self.catalog.decisions("skills")]

    def program(self, digest: str) -> str:
        return self.store.get_blob(digest).decode()

    def records(self, stage: str, schema: str) -> list[dict[str, Any]]:
        rows = [row for row in self.catalog.stages("skills") if row.name == stage]
        return [self.store.get_record(row.output, schema) for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root = tmp_path_factory.mktemp("runs")
    with FaultyServer(skilled(SECRET)) as server:
        settings = ["recipe=ci", "auxiliary=skills", f"auxiliary.base_url={server.url}", "auxiliary.model=m"]
        # Both tables fit into one observation. No RL: under such a program the scripted model is always
        # right, and a phase without a signal is refused.
        settings += [
            "mode=harness",
            QUICK,
            "budgets.tool_response_tokens=512",
            "budgets.tool_history_tokens=1024",
        ]
        settings += ["run_id=skills", f"storage.root={root}"]
        done = subprocess.run(
            [sys.executable, "-m", "flows", "run", *settings],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return Finished(Catalog(root / "catalog.db"), Store(root / "store"), server.asked, root / "skills")


@pytest.mark.spec("PROP-09", "SEL-05", "SCHED-02")
def test_skill_files_are_adopted_one_entry_at_a_time_and_the_last_one_is_better(finished: Finished) -> None:
    first, *_ = decisions = finished.decisions()
    assert len(decisions) == 3
    assert finished.program(first["parent"]) == seed_harness("skills").code
    adopted = [decision for decision in decisions if decision["adopted"]]
    assert len(adopted) == 2, "one skill for each of the two families"
    for decision in adopted:
        before, after = (finished.program(decision[name]) for name in ("parent", "selected"))
        old, new = read_skill_file(before), read_skill_file(after)
        assert new.frozen == old.frozen
        assert new.instructions == old.instructions
        assert new.skills[:-1] == old.skills
        assert new.skills[-1].text == HINT
    scopes = {skill.scope for skill in _last(finished).skills}
    assert scopes == {"family:cities", "family:metals"}
    rows = finished.catalog.measurements("skills")
    scores = [row.correct for row in rows if row.kind in ("phase_baseline_test", "phase_end_test")]
    assert scores[-1] > scores[0]


def _last(finished: Finished) -> SkillFile:
    return read_skill_file(finished.program(finished.decisions()[-1]["selected"]))


@pytest.mark.spec("EVID-06", "PROP-08")
def test_a_candidate_whose_hypothesis_quotes_val_is_refused_and_the_step_goes_on(finished: Finished) -> None:
    *steps, last = finished.decisions()
    assert last["skipped"], "after two skills too few tasks are left to cite"
    for decision in steps:
        [dropped] = [item for item in decision["dropped"] if item["index"] == 0]
        assert dropped["hypothesis"] == WITHHELD
        assert "the words that came with it" in dropped["reason"]
    assert {run.status for run in [finished.catalog.run("skills")] if run} == {"completed"}


@pytest.mark.spec("EVID-02", "EVID-06")
def test_no_byte_sent_to_the_auxiliary_holds_a_canary_or_what_it_said_of_val(finished: Finished) -> None:
    roles = {role_of(asked) for asked in finished.asked}
    assert roles == {"probe", "simulator", "interpreter", "improver"}
    assert len(finished.asked) > 30
    raw = [asked.raw.decode() for asked in finished.asked]
    assert not [text for text in raw if any(canary in text for canary in CANARIES)]
    assert not [text for text in raw if _quoted(text)]
    assert any(WITHHELD in text for text in raw), "the history says that something was withheld"


@pytest.mark.spec("EVID-06")
def test_withheld_words_stand_in_no_record_but_the_exchanges_and_on_no_page(finished: Finished) -> None:
    records = [
        *finished.records("propose", "proposals"),
        *finished.records("preflight", "finalists"),
        *finished.decisions(),
    ]
    assert len(records) == 9
    assert not [record for record in records if _quoted(json.dumps(record))]
    pages = [path.read_text(encoding="utf-8") for path in finished.folder.rglob("*.html")]
    assert len(pages) == 4
    assert not [page for page in pages if _quoted(html.unescape(page))]
    exchanges = [
        finished.store.get_record(record["exchanges"], "auxiliary-exchanges")
        for record in finished.records("propose", "proposals")
    ]
    assert [_quoted(json.dumps(item["exchanges"])) for item in exchanges] == [True, True, False]


def _quoted(text: str) -> bool:
    """Whether the secret's question stands in the text, however often its quotation marks were escaped."""
    before, name, after = SECRET.splitlines()[0].split('"')
    return re.search(rf'{before}\\*"{name}\\*"{re.escape(after)}', text) is not None
