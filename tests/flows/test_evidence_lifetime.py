"""Evidence lives on in a phase until a program is adopted; history lives on in a run (EVID-03, EVID-04)."""

from types import SimpleNamespace
from typing import Any

import pytest

import flows.cycle
from catalog.store import Ref
from tasks.config import ScheduleConfig
from tasks.values import Finalists, Selected


def ref(name: str) -> Ref:
    return Ref(digest=f"sha256:{name:0>64}", kind="blob", size=1)


def named(refs: tuple[Ref, ...]) -> list[str]:
    return [item.digest.removeprefix("sha256:").lstrip("0") for item in refs]


@pytest.mark.spec("EVID-03", "EVID-04", "SCHED-02")
async def test_pending_evidence_is_cleared_by_an_adoption_and_history_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[list[str], list[str]]] = []

    async def collect(cycle: int, step: int, *_: Any) -> Ref:
        return ref(f"c{cycle}{step}")

    async def propose(
        cycle: int, step: int, harness: Ref, evidence: tuple[Ref, ...], history: tuple[Ref, ...]
    ) -> Ref:
        seen.append((named(evidence), named(history)))
        return ref("f")

    async def preflight(*_: Any) -> Finalists:
        return Finalists(record=ref("f"), entries=())

    async def select(cycle: int, step: int, *_: Any) -> Selected:
        return Selected(selected=ref("e"), adopted=step == 2, record=ref(f"d{cycle}{step}"))

    async def nothing(*_: Any) -> Ref:
        return ref("f")

    session = SimpleNamespace(config=SimpleNamespace(schedule=ScheduleConfig(steps=4)))
    stages = {"collect": collect, "propose": propose, "preflight": preflight, "select": select}
    for name in ("designate", "evaluate"):
        monkeypatch.setattr(flows.cycle, name, nothing)
    for name, stage in stages.items():
        monkeypatch.setattr(flows.cycle, name, stage)
    monkeypatch.setattr(flows.cycle, "current", lambda: session)
    _, history = await flows.cycle.harness_phase.fn(1, ref("a"), ref("b"), ())
    await flows.cycle.harness_phase.fn(2, ref("a"), ref("b"), history)
    assert seen[:4] == [
        (["c11"], []),
        (["c11", "c12"], ["d11"]),
        (["c13"], ["d11", "d12"]),
        (["c13", "c14"], ["d11", "d12", "d13"]),
    ]
    # A new phase begins with nothing pending, and with the history of the one before.
    assert seen[4] == (["c21"], ["d11", "d12", "d13", "d14"])
