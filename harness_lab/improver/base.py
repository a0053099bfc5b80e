"""What an improver is: evidence and a parent in, a proposal or a reason to skip out (PROP-01..08).

All proposals of a step are made from the same parent before any Val result of the step exists; `propose_all`
takes no result, so it cannot know one.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from broker.budgets import Budgets
from broker.harness import Harness
from harness_lab.chat import AuxiliaryError
from harness_lab.evidence import EvidenceBundle
from harness_lab.history import HistoryEntry


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProposalContext(_Frozen):
    """What an improver may see beside the parent (PROP-03). All of it is public."""

    evidence: EvidenceBundle
    inventory: dict[str, Any]
    """The public resource inventory: tables, columns, delimiters, libraries."""
    history: tuple[HistoryEntry, ...] = ()
    budgets: Budgets
    cycle: int = 1
    step: int = 1


class Proposal(_Frozen):
    """One candidate with what it claims and rests on."""

    command: Literal["propose"] = "propose"
    harness: Harness
    hypothesis: str = Field(min_length=1)
    rationale: str = Field(min_length=1)
    evidence_ids: tuple[str, ...]
    protocol: dict[str, Any] = Field(default_factory=dict)
    """Reads, repairs, calls and errors on the way, where an improver has them."""
    withheld: bool = False
    """Its words held what no improver may know and were replaced (`words.py`); the candidate is refused."""


class Skip(_Frozen):
    """No candidate, and why. `failed` is the auxiliary's fault, `skipped` its choice (PROP-08)."""

    command: Literal["skip"] = "skip"
    kind: Literal["skipped", "failed"] = "skipped"
    reason: str
    protocol: dict[str, Any] = Field(default_factory=dict)
    withheld: bool = False
    """Its reason was replaced, as a proposal's words are."""


class Improver(Protocol):
    identity: str

    async def propose(
        self, parent: Harness, context: ProposalContext, index: int, count: int
    ) -> Proposal | Skip:
        """Candidate `index` of `count`, independent of the others. Raises AuxiliaryError."""
        ...

    async def close(self) -> None: ...


async def propose_all(
    improver: Improver, parent: Harness, context: ProposalContext, count: int
) -> tuple[Proposal | Skip, ...]:
    """All proposals of a step, in order, asked for at the same time: none can know another.

    A bad citation or a failing auxiliary becomes a skip.
    """
    if len({item.task_id for item in context.evidence.items}) < 2:
        reason = "fewer than two Train tasks left something to cite"
        return tuple(Skip(reason=reason) for _ in range(count))
    asked = [asyncio.ensure_future(_one(improver, parent, context, index, count)) for index in range(count)]
    try:
        return tuple(await asyncio.gather(*asked))
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _one(
    improver: Improver, parent: Harness, context: ProposalContext, index: int, count: int
) -> Proposal | Skip:
    try:
        made = await improver.propose(parent, context, index, count)
    except AuxiliaryError as error:
        return Skip(kind="failed", reason=str(error))
    problem = context.evidence.citation_problem(made.evidence_ids) if isinstance(made, Proposal) else None
    return made if problem is None else Skip(kind="failed", reason=problem, protocol=made.protocol)


def known_programs(history: tuple[HistoryEntry, ...], parent: Harness, cycle: int) -> Mapping[str, str]:
    """Digest to outcome of what was tried from this parent in this cycle, when the model was the same."""
    return {
        tried.harness: tried.outcome
        for entry in history
        if entry.parent == parent.digest and entry.cycle == cycle
        for tried in entry.tried
    }
