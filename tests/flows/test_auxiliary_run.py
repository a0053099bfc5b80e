"""A chat auxiliary in whole runs: probed before anything, recorded, and never told a private reference.

Every byte that a run sends to it is searched for the canaries of the release; the same search finds them when
a reference is leaked on purpose.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from catalog.database import Catalog
from catalog.store import Store
from tests.fixtures.chat_answers import CRASH, evolving, refused, role_of, said
from tests.fixtures.command_line import ROOT, rinr
from tests.fixtures.faulty_server import Asked, FaultyServer
from tests.fixtures.sandboxes import QUICK

REFERENCES = ROOT / "tests/fixtures/tiny-release/private/references.jsonl"
CANARIES = [json.loads(line)["canary"].encode() for line in REFERENCES.read_text().splitlines()]


def chat(server: FaultyServer, *more: str) -> list[str]:
    return ["auxiliary=chat", f"auxiliary.base_url={server.url}", "auxiliary.model=m", *more]


def hits(asked: list[Asked]) -> int:
    """Requests with a canary in any byte of them."""
    return sum(any(canary in request.raw for canary in CANARIES) for request in asked)


def one_line(stderr: str) -> str:
    [line] = [line for line in stderr.splitlines() if line.startswith("rinr: ")]
    return line


@pytest.mark.spec("PROP-04", "SCHED-07")
def test_probe_auxiliary_prints_what_the_endpoint_takes() -> None:
    with FaultyServer(evolving) as server:
        done = rinr("probe-auxiliary", *chat(server, "auxiliary.effort=low"))
    assert done.returncode == 0, done.stderr
    for word in ("served-by-test", "json_schema", "max_tokens=8192", "accepted, low is sent", "usable"):
        assert word in done.stdout
    assert [role_of(asked) for asked in server.asked] == ["probe"] * 3


@pytest.mark.parametrize(
    ("behave", "settings", "word"),
    [
        (lambda asked: refused("no key", 401), (), "OPENAI_API_KEY, which is not set"),
        (lambda asked: refused("no", 403), ("auxiliary.api_key_variable=AUX_KEY",), "AUX_KEY, which is not"),
        (lambda asked: said("Hello!"), (), "follows no command"),
    ],
)
def test_an_unusable_auxiliary_is_one_line_and_exit_code_5(
    behave: Any, settings: tuple[str, ...], word: str
) -> None:
    with FaultyServer(behave) as server:
        done = rinr("probe-auxiliary", *chat(server, *settings), OPENAI_API_KEY="")
    assert done.returncode == 5
    assert word in one_line(done.stderr)
    assert "Traceback" not in done.stderr
    assert "usable" in done.stdout


def test_a_key_is_sent_and_never_printed() -> None:
    with FaultyServer(lambda asked: refused("bad key sk-secret-1", 401)) as server:
        done = rinr("probe-auxiliary", *chat(server), OPENAI_API_KEY="sk-secret-1")
    assert "holds the key that was refused" in done.stderr
    assert "sk-secret" not in done.stdout + done.stderr
    assert server.asked[0].headers["authorization"] == "Bearer sk-secret-1"


def test_rules_ask_no_endpoint_and_the_fix_is_named() -> None:
    done = rinr("probe-auxiliary")
    assert done.returncode == 2
    assert "auxiliary=chat auxiliary.base_url=URL" in one_line(done.stderr)


@pytest.mark.slow
def test_a_run_whose_auxiliary_is_not_usable_ends_before_any_model_is_started(tmp_path: Path) -> None:
    with FaultyServer(lambda asked: refused("no key", 401)) as server:
        settings = chat(server, "recipe=ci", QUICK, "run_id=x", f"storage.root={tmp_path}")
        done = rinr("run", *settings, OPENAI_API_KEY="")
    assert done.returncode == 5, done.stderr[-2000:]
    assert "OPENAI_API_KEY, which is not set" in one_line(done.stderr)
    assert "starting inference" not in done.stderr
    assert Catalog(tmp_path / "catalog.db").run("x") is None
    assert len(server.asked) == 1


def started(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A whole run, which a busy machine may take minutes for."""
    return subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@dataclass(frozen=True)
class Finished:
    """The ci schedule with a chat auxiliary, and all that was sent to it."""

    catalog: Catalog
    store: Store
    asked: list[Asked]

    def records(self, stage: str) -> list[dict[str, Any]]:
        schema = {"collect": "interactions", "propose": "proposals"}[stage]
        rows = [row for row in self.catalog.stages("chat") if row.name == stage]
        return [self.store.get_record(row.output, schema) for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root = tmp_path_factory.mktemp("runs")
    with FaultyServer(evolving) as server:
        prices = ("auxiliary.endpoint.prompt_price=1", "auxiliary.endpoint.completion_price=1")
        settings = chat(server, "recipe=ci", QUICK, "run_id=chat", f"storage.root={root}", *prices)
        done = started([sys.executable, "-m", "flows", "run", *settings])
    assert done.returncode == 0, done.stderr[-3000:]
    return Finished(Catalog(root / "catalog.db"), Store(root / "store"), server.asked)


@pytest.mark.slow
@pytest.mark.spec("EVID-02")
def test_no_byte_sent_to_the_auxiliary_in_a_full_run_holds_a_canary(finished: Finished) -> None:
    assert {role_of(asked) for asked in finished.asked} == {"probe", "simulator", "interpreter", "improver"}
    assert len(finished.asked) > 30
    assert all(len(asked.raw) > len(json.dumps(asked.body)) // 2 for asked in finished.asked)
    assert hits(finished.asked) == 0


@pytest.mark.slow
@pytest.mark.spec("SCHED-07")
def test_the_probe_comes_first_and_its_record_is_named_by_the_run(finished: Finished) -> None:
    assert [role_of(asked) for asked in finished.asked][:4].count("probe") >= 3
    run = finished.catalog.run("chat")
    assert run is not None
    found = finished.store.get_record(run.config["auxiliary_probe"], "auxiliary-probe")
    assert found["usable"]
    assert [step["command"] for step in found["steps"]] == ["read", "propose", "skip"]


@pytest.mark.slow
@pytest.mark.spec("FB-04", "FB-05", "PROP-08")
def test_every_exchange_of_a_run_is_kept_apart_from_evidence(finished: Finished) -> None:
    kept: list[dict[str, Any]] = []
    for stage in ("collect", "propose"):
        for record in finished.records(stage):
            body = finished.store.get_record(record["exchanges"], "auxiliary-exchanges")
            assert body["labels"] == ["private"]
            assert body["identity"]
            kept += body["exchanges"]
    spoken = [asked for asked in finished.asked if role_of(asked) != "probe"]
    assert len(kept) == len(spoken)
    assert {item["role"] for item in kept} == {"simulator", "interpreter", "improver"}
    assert all(item["cost"] == pytest.approx(13e-6) for item in kept)
    sent = sorted(json.dumps(asked.body["messages"], sort_keys=True) for asked in spoken)
    assert sorted(json.dumps(item["messages"], sort_keys=True) for item in kept) == sent


@pytest.mark.slow
@pytest.mark.spec("EVID-02", "EVID-03")
def test_each_proposal_names_a_bundle_whose_labels_are_public(finished: Finished) -> None:
    for record in finished.records("propose"):
        bundle = finished.store.get_record(record["bundle"], "evidence-bundle")
        assert bundle["labels"] == ["public"]
        for source in bundle["interactions"]:
            collected = finished.store.get_record(source["record"], "interactions")
            assert collected["interactions"][source["place"]]["task"]["id"] == source["task"]


@pytest.mark.slow
@pytest.mark.spec("FB-06", "FB-07")
def test_readings_of_a_chat_interpreter_become_hypotheses_in_the_evidence(finished: Finished) -> None:
    notes = [
        note
        for record in finished.records("collect")
        for item in record["interactions"]
        for _, note in item["annotations"]
    ]
    assert notes
    assert {note["status"] for note in notes} == {"hypothesis"}


@pytest.mark.slow
@pytest.mark.spec("EVID-05", "PROP-03", "SEL-01")
def test_the_crash_of_a_candidate_in_preflight_reaches_the_next_steps_proposals(finished: Finished) -> None:
    first, *_, last = [asked for asked in finished.asked if role_of(asked) == "improver"]
    assert CRASH not in json.dumps(first.body)
    assert CRASH in json.dumps(last.body["messages"][1])
    dropped = [item for row in finished.catalog.decisions("chat") for item in row.decision["dropped"]]
    assert any(CRASH in item["reason"] for item in dropped), dropped


LEAK = """
import sys
import harness_lab.auxiliary as auxiliary
import harness_lab.chat as chat

if sys.argv.pop(1) == "unguarded":
    chat.require_clean = lambda texts, whom: None
reference = open("tests/fixtures/tiny-release/private/references.jsonl").readline()
real = auxiliary.reply_request
auxiliary.reply_request = lambda question, answer, allowed: {
    **real(question, answer, allowed), "reference": reference
}
from flows.cli import main
main()
"""


def leaking(server: FaultyServer, root: Path, guard: str) -> subprocess.CompletedProcess[str]:
    """One harness phase of a program that gives the simulator a reference."""
    settings = chat(server, "recipe=ci", QUICK, "run_id=leak", f"storage.root={root}", "mode=harness")
    return started([sys.executable, "-c", LEAK, guard, "run", *settings, "schedule.cycles=1"])


@pytest.mark.slow
@pytest.mark.spec("EVID-02")
def test_the_search_finds_a_reference_that_is_leaked_on_purpose(tmp_path: Path) -> None:
    with FaultyServer(evolving) as server:
        done = leaking(server, tmp_path, "unguarded")
    assert done.returncode == 0, done.stderr[-3000:]
    assert hits(server.asked) == sum(role_of(asked) == "simulator" for asked in server.asked) > 0


@pytest.mark.slow
@pytest.mark.spec("EVID-02")
def test_a_leak_is_stopped_before_its_first_byte_leaves_and_ends_the_run(tmp_path: Path) -> None:
    with FaultyServer(evolving) as server:
        done = leaking(server, tmp_path, "guarded")
    assert done.returncode == 1, done.stderr[-3000:]
    assert "canary was about to be sent to the simulator; the run stops" in one_line(done.stderr)
    assert hits(server.asked) == 0
    assert "simulator" not in {role_of(asked) for asked in server.asked}
    run = Catalog(tmp_path / "catalog.db").run("leak")
    assert run is not None
    assert run.status == "failed"
