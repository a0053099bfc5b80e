"""`rinr doctor`: what is shown, and the exit code of a proof that fails."""

import asyncio
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from broker.sandbox.check import Check
from broker.sandbox.factory import Kind
from flows import doctor
from flows.cli import app
from tests.fixtures.sandboxes import BACK_ENDS, CACHE, real_sandboxes


@pytest.mark.parametrize("kind", BACK_ENDS)
def test_doctor_shows_what_was_seen_for_each_proof(kind: Kind) -> None:
    asyncio.run(real_sandboxes(kind).close())
    output = StringIO()
    assert doctor.examine_sandboxes(CACHE, doctor.BACK_ENDS[kind], Console(file=output, width=200))
    table = output.getvalue()
    for proof in ("network", "vsock", "lake is read-only", "memory of a", "processes", "open files"):
        assert f"{kind}: {proof}" in table
    assert "calls; all refused" in table


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
