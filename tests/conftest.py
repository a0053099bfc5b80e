"""Shared test set-up: nothing leaves the machine, Prefect's files stay in the cache, slow cases run last."""

import os
import signal
from pathlib import Path

import pytest

from tests.fixtures.sandboxes import sandboxes as sandboxes

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
# One home for all runs of the suite: a new one costs the server's migrations each time.
os.environ["PREFECT_HOME"] = str(ROOT / ".cache" / "prefect-tests")
os.environ.pop("PREFECT_API_URL", None)
# A suite that was started in the background ignores Ctrl-C, and every run that a test starts would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """End-to-end cases last, so that a small mistake is told first."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
