"""The command line's face: help with examples, and answers that need no run."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app

ROOT = Path(__file__).resolve().parents[2]
RUNNER = CliRunner()


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["evaluate"],
        ["worker"],
        ["report"],
        ["doctor"],
        ["replay"],
        ["repair"],
        ["release", "verify"],
    ],
)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    shown = RUNNER.invoke(app, [*command, "--help"])
    assert shown.exit_code == 0
    assert f"Example: rinr {' '.join(command)}" in " ".join(shown.output.split())


@pytest.mark.spec("DATA-02")
def test_the_bundled_release_verifies() -> None:
    shown = RUNNER.invoke(app, ["release", "verify", "open-genomics"])
    assert shown.exit_code == 0, shown.output
    assert "ok: 240 train, 60 val, 60 test" in shown.output


def test_help_loads_neither_prefect_nor_torch_nor_the_catalog() -> None:
    heavy = ["prefect", "torch", "matplotlib", "sqlalchemy", "openai"]
    code = f"import sys, flows.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_run_without_a_verb_lists_the_verbs_and_an_unknown_one_is_refused() -> None:
    listed = subprocess.run(["./run"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert listed.returncode == 0
    for verb in ("demo", "test", "bench", "lint", "rinr", "setup"):
        assert f"\n  {verb} " in listed.stdout
    refused = subprocess.run(
        ["./run", "dmeo"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert refused.returncode == 1
    assert "unknown verb 'dmeo'" in refused.stderr
