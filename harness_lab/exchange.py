"""What was asked of the auxiliary and what it said, word for word: an artifact for people, never evidence.

One `Exchange` a question, whether a chat endpoint or the rules answered it. A `Ledger` holds those of the
stage that is running. Must not know what a reply is used for.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness_lab.manner import Manner

Role = Literal["simulator", "interpreter", "improver", "probe"]
SCHEMA: Final = "auxiliary-exchanges"
VERSION: Final = 1
LONGEST_KEPT: Final = 256 * 1024
"""Characters of one reply that are kept."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Exchange(_Frozen):
    """One question to the auxiliary, repeats by the transport included."""

    role: Role
    answered_by: str
    """Identity of the endpoint or of the rules."""
    subject: str = ""
    """What it was about: a Train task, or a candidate."""
    messages: tuple[dict[str, str], ...]
    """As they were sent."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    reply: str | None
    """None when there was none."""
    problem: str = ""
    """Why there was no usable text; empty when there was."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reported: bool = True
    """The endpoint's own counts, not the host's."""
    cost: float | None = None
    """By the configured prices; None without prices."""
    requests: int = 0
    """HTTP requests of the answer; of a failure they are not known and 0."""
    seconds: float = 0.0


class Fallback(_Frozen):
    """A reply of the auxiliary that was not used, and what the host did instead."""

    role: Role
    subject: str
    problem: str
    instead: str


class Ledger:
    """Exchanges in the order in which they ended."""

    def __init__(self) -> None:
        self._kept: list[Exchange] = []

    def add(self, exchange: Exchange) -> None:
        self._kept.append(exchange)

    def mark(self) -> int:
        """How many there are."""
        return len(self._kept)

    def since(self, mark: int) -> tuple[Exchange, ...]:
        """Those added after a mark, left where they are."""
        return tuple(self._kept[mark:])

    def latest(self) -> Exchange:
        return self._kept[-1]

    def take(self) -> tuple[Exchange, ...]:
        """All exchanges since the last call."""
        kept, self._kept = tuple(self._kept), []
        return kept


class Totals(_Frozen):
    """What one role's exchanges came to."""

    exchanges: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """None without prices."""
    seconds: float


def totals(exchanges: Iterable[Exchange]) -> dict[str, Totals]:
    """By role, in the order in which the roles first spoke."""
    groups: dict[str, list[Exchange]] = {}
    for item in exchanges:
        groups.setdefault(item.role, []).append(item)
    return {role: _total(items) for role, items in groups.items()}


def _total(items: Sequence[Exchange]) -> Totals:
    costs = [item.cost for item in items if item.cost is not None]
    return Totals(
        exchanges=len(items),
        failed=sum(bool(item.problem) for item in items),
        prompt_tokens=sum(item.prompt_tokens for item in items),
        completion_tokens=sum(item.completion_tokens for item in items),
        cost=sum(costs) if costs else None,
        seconds=sum(item.seconds for item in items),
    )


def artifact(
    identity: str,
    exchanges: Iterable[Exchange],
    fallbacks: Iterable[Fallback] = (),
    manner: Manner | None = None,
) -> dict[str, Any]:
    """The body of a stage's record of its exchanges; marked private, for reports alone."""
    kept = tuple(exchanges)
    return {
        "labels": ["private"],
        "identity": identity,
        "manner": manner.model_dump(mode="json") if manner is not None else None,
        "totals": {role: total.model_dump(mode="json") for role, total in totals(kept).items()},
        "fallbacks": [item.model_dump(mode="json") for item in fallbacks],
        "exchanges": [item.model_dump(mode="json") for item in kept],
    }
