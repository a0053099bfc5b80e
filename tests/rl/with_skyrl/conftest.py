"""Contract tests with SkyRL itself, in the environment that `./run test` makes; elsewhere skipped."""

import importlib.util

import pytest

if importlib.util.find_spec("skyrl") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL narrates every step."""
    monkeypatch.setenv("LOG_LEVEL", "WARNING")
