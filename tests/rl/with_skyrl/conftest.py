"""Contract tests with SkyRL itself, in the environment that `./run test` makes; elsewhere skipped."""

import importlib.util
import sys
from types import ModuleType

import pytest

if importlib.util.find_spec("skyrl") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL narrates every step."""
    monkeypatch.setenv("LOG_LEVEL", "WARNING")


@pytest.fixture
def flash_attn_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL's FSDP imports two functions of a package that is only built on GPU machines; none calls them."""
    padding = ModuleType("flash_attn.bert_padding")
    padding.pad_input = padding.unpad_input = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.bert_padding", padding)
