"""`rinr control` prints the seen beside the predicted and answers by its exit code."""

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.control import lines
from harness_lab.control import ControlConfig, ControlResult


def test_the_command_prints_adoptions_and_gain_beside_the_null() -> None:
    done = CliRunner().invoke(app, ["control", "--identical", "--shuffled", "--steps", "30", "--val", "12"])
    assert done.exit_code == 0, done.output
    assert done.output.count("null") >= 4
    assert "identical: 30 steps" in done.output
    assert "shuffled: 30 steps" in done.output


def test_no_kind_is_bad_input_in_one_line() -> None:
    done = CliRunner().invoke(app, ["control"])
    assert done.exit_code == 2
    assert "--identical" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_control_that_does_not_fit_ends_with_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ControlResult(
        config=ControlConfig(kind="identical"),
        adoptions=200,
        expected_adoptions=141.0,
        gain=3.0,
        gain_error=0.2,
        expected_gain=3.0,
        said=0.8,
        adoption_chance=1e-20,
    )
    monkeypatch.setattr("flows.control.run_control", lambda config, folder: broken)
    done = CliRunner().invoke(app, ["control", "--identical"])
    assert done.exit_code == 1
    assert "DOES NOT FIT" in done.output
    assert any("200/200 = 100.0% (95 %" in line for line in lines(broken))
