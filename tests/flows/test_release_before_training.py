"""The order of an RL phase: a trainer is asked only once the servers' memory is proven free (HAND-04)."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import ModelUnavailable
from catalog.store import Ref
from flows import cycle

MODEL = Ref(kind="tree", digest="sha256:" + "0" * 64, size=1)
HARNESS = Ref(kind="blob", digest="sha256:" + "1" * 64, size=1)


def phase(monkeypatch: pytest.MonkeyPatch, *, claim: str, memory: str = "free") -> list[str]:
    """The flow's own stages replaced by notes of their names, in the order of their calls."""
    seen: list[str] = []

    def note(name: str, answer: Any = None) -> Callable[..., Any]:
        async def stage(*_: Any) -> Any:
            seen.append(name)
            return answer

        return stage

    async def release_services() -> None:
        seen.append("release")
        if memory != "free":
            raise ModelUnavailable("vLLM has ended, but its GPU memory was not free within 60 s")

    @asynccontextmanager
    async def holding(request: str) -> Any:
        seen.append("claim")
        yield

    config = SimpleNamespace(trainer=SimpleNamespace(claim=claim))
    session = SimpleNamespace(release_services=release_services, config=config)
    monkeypatch.setattr(cycle, "current", lambda: session)
    monkeypatch.setattr(cycle, "holding", holding)
    answers = {"publish": "request", "train": "trained", "consume": MODEL}
    for name in ("evaluate", "publish", "train", "validate", "consume"):
        monkeypatch.setattr(cycle, name, note(name, answers.get(name)))
    return seen


@pytest.mark.spec("HAND-04", "HAND-01")
@pytest.mark.parametrize(
    ("claim", "stages"),
    [
        ("inline", ["evaluate", "release", "publish", "claim", "train", "validate", "consume"]),
        ("worker", ["evaluate", "release", "publish", "consume"]),
    ],
)
async def test_services_are_released_before_the_request_is_published(
    claim: str, stages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = phase(monkeypatch, claim=claim)
    assert await cycle.rl_phase.fn(1, MODEL, HARNESS) == MODEL
    assert seen == stages


@pytest.mark.spec("HAND-04")
@pytest.mark.parametrize("claim", ["inline", "worker"])
async def test_memory_that_is_not_free_ends_the_phase_before_anybody_may_train(
    claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = phase(monkeypatch, claim=claim, memory="held")
    with pytest.raises(ModelUnavailable, match="was not free"):
        await cycle.rl_phase.fn(1, MODEL, HARNESS)
    assert seen == ["evaluate", "release"]
