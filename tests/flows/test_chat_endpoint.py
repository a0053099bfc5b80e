"""A hosted chat model from the command line and in the harness phase; a run that would train refuses it."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.record import GradedEpisode
from broker.template import ChatTemplate
from catalog.database import Catalog
from catalog.store import Store
from tests.fixtures.command_line import HARNESS, ROOT, rinr
from tests.fixtures.sandboxes import QUICK
from tests.fixtures.stub_policy import ScriptedPolicy, known_answers
from tests.fixtures.stub_server import StubServer, chat_from

TINY = "tests/fixtures/tiny_model"
RELEASE = "tests/fixtures/tiny-release"


def hosted() -> StubServer:
    """A chat endpoint like the scripted model of the ci recipe, only that examples make it always right.

    It has no completions route, and none that lists its models.
    """
    known = known_answers([ROOT / RELEASE])
    scripted = chat_from(ScriptedPolicy(known), ChatTemplate.load(ROOT / TINY))

    def say(body: dict[str, Any]) -> str:
        messages = body["messages"]
        asked = known.get(messages[-1]["content"])
        shown = any(item["role"] == "assistant" and "<answer>" in item["content"] for item in messages)
        return f"<answer>{asked.answer}</answer>" if asked and shown else scripted(body)

    stub = StubServer(chat_policy=say)
    stub.asgi.router.routes = [
        route for route in stub.asgi.router.routes if getattr(route, "path", "") == "/v1/chat/completions"
    ]
    return stub


@pytest.mark.spec("HOST-11", "HOST-12")
def test_a_chat_endpoint_is_evaluated_and_its_cost_recorded(tmp_path: Path) -> None:
    program = tmp_path / "h.py"
    program.write_text(HARNESS)
    with hosted() as stub:
        done = rinr(
            *("evaluate", "--harness", str(program), "--model", stub.url, "--tokenizer", TINY),
            *("--release", RELEASE, "--set", "model=chat", "--set", "model.served_name=big"),
            *("--set", f"storage.root={tmp_path / 'runs'}", "--set", "run_id=hosted"),
            *("--set", "model.endpoint.prompt_price=2", "--set", "model.api_key_variable=SOME_KEY"),
            SOME_KEY="sk-secret",
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "first answers right" in done.stdout
    assert "task model big: " in done.stderr
    catalog, store = Catalog(tmp_path / "runs" / "catalog.db"), Store(tmp_path / "runs" / "store")
    [row] = catalog.measurements("hosted")
    assert row.total == len({body["messages"][-1]["content"] for body in stub.bodies[1:]})
    # The stub reports one token each way for every answer.
    assert row.detail["usage"]["prompt_tokens"] == row.total
    assert row.detail["usage"]["cost"] == pytest.approx(row.total * 2 / 1e6)
    run = catalog.run("hosted")
    assert run is not None
    assert "sk-secret" not in json.dumps(run.config)
    names = {entry.path for entry in store.tree_manifest(row.model)}
    assert "chat_endpoint.json" in names
    assert not any(name.endswith(".safetensors") for name in names)


@pytest.mark.spec("HOST-11")
@pytest.mark.parametrize("recipe", ["ci", "laptop"])
def test_a_run_that_would_train_refuses_a_chat_endpoint_before_anything_starts(
    tmp_path: Path, recipe: str
) -> None:
    root = tmp_path / "runs"
    settings = ["model=chat", "model.base_url=http://127.0.0.1:9/v1", "model.served_name=big"]
    done = rinr("run", f"recipe={recipe}", *settings, f"storage.root={root}")
    lines = [line for line in done.stderr.splitlines() if line.startswith("rinr: ")]
    assert done.returncode == 2, done.stderr[-2000:]
    assert len(lines) == 1
    assert "gives no token ids" in lines[0]
    assert "RL needs a vLLM server" in lines[0]
    assert not root.exists()


@pytest.mark.spec("HOST-11")
@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (["model=chat"], "model.served_name"),
        (["model=chat", "model.served_name=big", "model.dialect=latin"], "model.dialect"),
        (
            ["model=chat", "model.served_name=big", "model.endpoint.atempts=2"],
            "did you mean model.endpoint.attempts",
        ),
    ],
)
def test_a_wrong_setting_of_a_chat_endpoint_is_named(tmp_path: Path, settings: list[str], word: str) -> None:
    program = tmp_path / "h.py"
    program.write_text(HARNESS)
    chosen = [part for setting in settings for part in ("--set", setting)]
    done = rinr("evaluate", "--harness", str(program), "--model", "http://127.0.0.1:9/v1", *chosen)
    assert done.returncode == 2, done.stderr[-2000:]
    assert word in done.stderr
    assert "Traceback" not in done.stderr


PHASE = """
import asyncio, os, sys
from pathlib import Path
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings
from flows.compose import compose_config
from flows.cycle import harness_phase
from flows.prefect_server import own_server
from report.progress import RunProgress
from tasks.outer import import_model, import_seed
from tasks.session import open_session

@flow
async def phase(config):
    with RunProgress() as progress:
        async with open_session(config, progress):
            model, harness = await import_model(), await import_seed()
            selected, history = await harness_phase(1, model, harness, ())
            return selected.digest != harness.digest, len(history)

with own_server(Path(os.environ["PREFECT_HOME"])) as server:
    with temporary_settings({PREFECT_API_URL: f"{server.url()}/api"}):
        print(asyncio.run(phase(compose_config(sys.argv[1:]))))
"""


@pytest.mark.slow
@pytest.mark.spec("HOST-11", "SEL-03")
def test_the_harness_phase_evolves_a_program_for_a_chat_endpoint(tmp_path: Path) -> None:
    with hosted() as stub:
        settings = [
            "recipe=ci",
            QUICK,
            "run_id=phase",
            f"storage.root={tmp_path}",
            "model=chat",
            f"model.name={TINY}",
        ]
        settings += [f"model.base_url={stub.url}", "model.served_name=big", "schedule.steps=2"]
        done = subprocess.run(
            [sys.executable, "-c", PHASE, *settings],
            cwd=ROOT,
            env={**os.environ, "PREFECT_LOGGING_LEVEL": "CRITICAL"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("(True, 2)"), done.stderr[-3000:]
    catalog, store = Catalog(tmp_path / "catalog.db"), Store(tmp_path / "store")
    rows = catalog.measurements("phase")
    assert {row.kind for row in rows} >= {"phase_baseline_test", "step_val_parent", "phase_end_test"}
    assert all(row.detail["usage"]["requests"] > 0 for row in rows)
    for row in rows:
        lines = gzip.decompress(store.get_blob(row.detail["episodes"])).splitlines()
        records = [GradedEpisode.model_validate_json(line).record for line in lines]
        assert records
        assert not any(record.token_exact for record in records)


@pytest.mark.slow
@pytest.mark.spec("HOST-07", "HOST-10")
def test_a_run_whose_engine_is_killed_goes_on_with_a_new_one(tmp_path: Path) -> None:
    settings = ["recipe=ci", "run_id=struck", f"storage.root={tmp_path}", "schedule.steps=1", QUICK]
    settings += ["model.endpoint.timeout_seconds=3", "model.endpoint.attempts=1"]
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", PHASE, *settings],
            cwd=ROOT,
            env={**os.environ, "PREFECT_LOGGING_LEVEL": "CRITICAL"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            first = _wait(lambda: _servers(child.pid), 120)
            _wait(lambda: _stages(tmp_path), 120)
            os.kill(first[0], signal.SIGKILL)
            assert child.wait(timeout=240) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    assert (tmp_path / "log").read_text().count("starting inference") == 2
    rows = Catalog(tmp_path / "catalog.db").measurements("struck")
    assert {"phase_baseline_test", "step_val_parent", "phase_end_test"} <= {row.kind for row in rows}
    assert all(row.total == 4 for row in rows if row.split == "test")


def _stages(root: Path) -> list[Any]:
    path = root / "catalog.db"
    return list(Catalog(path).stages("struck")) if path.exists() else []


def _servers(leader: int) -> list[int]:
    """The scripted servers of a run's session, not the wrappers that attend to them."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if int(fields[3]) == leader and "stub_server" in command and "server_child" not in command:
            found.append(int(stat.parent.name))
    return found


def _wait(condition: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise TimeoutError("it did not happen")
