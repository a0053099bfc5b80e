"""All proposals of a step exist before anything of Val starts, however slow one of them is (PROP-01)."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import flows.cycle
from broker.budgets import Budgets
from broker.harness import Harness
from catalog.store import Ref
from harness_lab.evidence import EvidenceBundle, EvidenceItem
from harness_lab.improver.base import Proposal, ProposalContext, Skip, propose_all
from tasks.config import ScheduleConfig
from tasks.values import Finalist, Finalists, Selected

REF = Ref(digest="sha256:" + "a" * 64, kind="blob", size=1)
CONTEXT = ProposalContext(
    evidence=EvidenceBundle(
        interactions=(),
        items=tuple(
            EvidenceItem(id=f"e{n}:0", task_id=f"t{n}", kind="correction", quote="no") for n in range(2)
        ),
    ),
    inventory={},
    budgets=Budgets(),
)


class SlowThird:
    """Two quick proposals, and a third that takes its time."""

    identity = "slow/1"

    def __init__(self, log: list[str]) -> None:
        self._log = log

    async def propose(
        self, parent: Harness, context: ProposalContext, index: int, count: int
    ) -> Proposal | Skip:
        await asyncio.sleep(0.3 if index == 2 else 0)
        self._log.append(f"proposal {index}")
        ids = tuple(item.id for item in context.evidence.items)
        return Proposal(harness=Harness(code=str(index)), hypothesis="h", rationale="r", evidence_ids=ids)

    async def close(self) -> None:
        return None


@pytest.mark.spec("PROP-01", "SEL-07")
async def test_a_slow_third_proposal_is_waited_for_and_no_val_episode_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    async def propose(*_: Any) -> Ref:
        found = await propose_all(SlowThird(log), Harness(code="p"), CONTEXT, 3)
        assert [item.command for item in found] == ["propose"] * 3
        return REF

    async def preflight(*_: Any) -> Finalists:
        entries = tuple(
            Finalist(index=n, program=REF, executable=True, reason="", hypothesis="h", rationale="r",
                     evidence_ids=())
            for n in range(3)
        )  # fmt: skip
        return Finalists(record=REF, entries=entries, skipped=())

    async def evaluate(role: str, *_: Any) -> Ref:
        log.append(role)
        return REF

    async def nothing(*_: Any) -> Ref:
        return REF

    async def select(*_: Any) -> Selected:
        return Selected(selected=REF, adopted=False, record=REF)

    session = SimpleNamespace(config=SimpleNamespace(schedule=ScheduleConfig(steps=2)))
    for name, stage in {
        "propose": propose, "preflight": preflight, "evaluate": evaluate, "select": select,
        "designate": nothing, "collect": nothing, "current": lambda: session,
    }.items():  # fmt: skip
        monkeypatch.setattr(flows.cycle, name, stage)
    await flows.cycle.harness_phase.fn(1, REF, REF, ())
    step = ["proposal 0", "proposal 1", "proposal 2", "step_val_parent", *["step_val_candidate"] * 3]
    assert log == ["phase_baseline_test", *step, *step, "phase_end_test"]
