"""`rinr doctor`: what is shown, and the exit code of a proof that fails."""

import asyncio
import os
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from broker.sandbox import bubblewrap_command
from broker.sandbox.check import Check
from broker.sandbox.factory import Kind
from flows import doctor
from flows.cli import app
from tests.fixtures.sandboxes import BACK_ENDS, CACHE, real_runtime, real_sandboxes


@pytest.mark.parametrize("kind", BACK_ENDS)
def test_doctor_shows_what_was_seen_for_each_proof(kind: Kind) -> None:
    asyncio.run(real_sandboxes(kind).close())
    output = StringIO()
    assert doctor.examine_sandboxes(CACHE, doctor.BACK_ENDS[kind], Console(file=output, width=200))
    table = output.getvalue()
    for proof in ("network", "vsock", "lake is read-only", "memory of a", "processes", "open files"):
        assert f"{kind}: {proof}" in table
    assert "calls; all refused" in table
    assert ("forked from a zygote" in table) is (kind == "bubblewrap")


def test_doctor_says_why_sandboxes_are_started_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(real_sandboxes("bubblewrap").close())
    monkeypatch.setattr(bubblewrap_command, "_ZYGOTE_RIGHTS", ())
    output = StringIO()
    assert doctor.examine_sandboxes(CACHE, ("bubblewrap",), Console(file=output, width=200)), "no failure"
    assert "one by one: cannot start a sandbox: PermissionError" in output.getvalue()


def test_a_back_end_that_is_not_there_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    done = CliRunner().invoke(app, ["doctor", "--sandbox", "docker", "--cache", str(CACHE)])
    assert done.exit_code == 3
    assert "start docker" in done.output


def test_a_failed_proof_is_named_and_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    async def prove(*_: object) -> tuple[str, list[Check]]:
        return "bubblewrap", [Check("starts", True, "up"), Check("network", False, "REACHED [eth0]")]

    monkeypatch.setattr(doctor, "_prove", prove)
    done = CliRunner().invoke(app, ["doctor", "--sandbox", "bubblewrap", "--cache", str(CACHE)])
    assert done.exit_code == 3
    assert "failed" in done.output
    assert "REACHED [eth0]" in done.output, "what was seen is no markup"


def test_an_unknown_back_end_is_refused_with_the_choices() -> None:
    done = CliRunner().invoke(app, ["doctor", "--sandbox", "podman"])
    assert done.exit_code == 2
    assert "bubblewrap" in done.output


def test_pruning_says_what_went_and_keeps_what_this_version_uses(tmp_path: Path) -> None:
    (tmp_path / "sandbox-packages").symlink_to(CACHE / "sandbox-packages")
    (tmp_path / "runtime").mkdir()
    kept, old = real_runtime().root.parent, tmp_path / "runtime" / ("0" * 16)
    shutil.copytree(kept, tmp_path / "runtime" / kept.name, copy_function=os.link, symlinks=True)
    (old / "root").mkdir(parents=True)
    (old / "root" / "file").write_bytes(bytes(2_000_000))
    (old / "runtime.json").write_text('{"digest": "sha256:0"}')
    command = [sys.executable, "-m", "flows", "doctor", "--prune", "--cache", str(tmp_path)]
    environment = {**os.environ, "DOCKER_HOST": "unix:///nonexistent"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"removed environment {old.name}, 2 MB",
        "2 MB freed; 1 in use or current",
    ]
    assert not old.exists()
    assert (tmp_path / "runtime" / kept.name / "root").is_dir()
