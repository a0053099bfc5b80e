"""What the page of a step shows beside the decision: evidence, scans, texts sent, cost, changed tasks.

Frozen types, and how they are read off recorded rows; a part that was never recorded is left out, never
guessed. Private: it knows who was right on Val. Must not know storage or HTML.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from report.changes import Hunk, hunks

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cited:
    """One evidence item that a proposal rests on."""

    id: str
    kind: str
    task: str
    quote: str


@dataclass(frozen=True, slots=True)
class Tried:
    """One preflight attempt."""

    task: str
    end: str
    calls: int
    passed: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """A Val task on which parent and candidate differ, with the episodes to replay."""

    task: str
    family: str
    fixed: bool
    parent_episode: str
    candidate_episode: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What one evaluation took; None where it was not recorded."""

    model_calls: int
    tool_calls: int
    tasks: int
    prompt_tokens: int | None
    completion_tokens: int | None

    @property
    def model_calls_a_task(self) -> float:
        return self.model_calls / self.tasks

    @property
    def tool_calls_a_task(self) -> float:
        return self.tool_calls / self.tasks


@dataclass(frozen=True, slots=True)
class Card:
    """What is told of one candidate beside its comparison."""

    index: int
    hunks: tuple[Hunk, ...]
    new_text: tuple[str, ...]
    """Reaches the model under the candidate and not under its parent, as the dry run showed."""
    gone_text: tuple[str, ...]
    dry_run: bool
    """A dry run was made and recorded."""
    notices: tuple[str, ...]
    scanned: bool
    tried: tuple[Tried, ...]
    cited: tuple[Cited, ...]
    changed: tuple[Changed, ...]
    spent: Spent | None
    protocol: tuple[tuple[str, str], ...]
    """Reads, repairs and calls of the improver on the way to this proposal."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one role of the auxiliary was asked in this step."""

    role: str
    questions: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class Shown:
    """What the improver saw, in numbers."""

    conversations: int
    tasks: int
    items: int
    steps: int
    """Finished steps whose aggregates stood in its history."""


@dataclass(frozen=True, slots=True)
class StepView:
    """One step, as far as it was recorded."""

    cycle: int
    step: int
    cards: tuple[Card, ...]
    skipped: tuple[str, ...]
    """Why proposals were not made."""
    parent_spent: Spent | None
    shown: Shown | None
    asked: tuple[Asked, ...]
    parent_episodes: tuple[tuple[str, str], ...]
    """Val task and episode of the parent."""

    def card(self, index: int) -> Card | None:
        return next((card for card in self.cards if card.index == index), None)

    @property
    def name(self) -> str:
        return f"h{self.cycle:04d}-{self.step}"


@dataclass(frozen=True, slots=True)
class StepRows:
    """The records of one step as plain values; what was not recorded is empty."""

    cycle: int
    step: int
    decision: Row
    proposals: Sequence[Row] = ()
    gates: Sequence[Row] = ()
    bundle: Row | None = None
    history: int = 0
    exchanges: Sequence[Row] = ()
    """Bodies of the step's exchange records."""
    parent: Row | None = None
    """Detail of the parent's Val measurement, outcomes included."""
    candidates: Mapping[int, Row] | None = None
    """Details of the candidates' Val measurements by index."""
    parent_code: str = ""
    codes: Mapping[int, str] | None = None


def step_view(rows: StepRows) -> StepView:
    """The view of one step."""
    items = {str(item["id"]): item for item in (rows.bundle or {}).get("items", ())}
    made = [index for index, item in enumerate(rows.proposals) if item.get("command") == "propose"]
    return StepView(
        cycle=rows.cycle,
        step=rows.step,
        cards=tuple(_card(index, rows, items) for index in made),
        skipped=tuple(str(reason) for reason in rows.decision.get("skipped", ())),
        parent_spent=_spent(rows.parent),
        shown=_shown(rows),
        asked=_asked(rows.exchanges),
        parent_episodes=tuple(sorted((rows.parent or {}).get("episode_ids", {}).items())),
    )


def _card(index: int, rows: StepRows, items: Mapping[str, Row]) -> Card:
    proposal = rows.proposals[index]
    gate: Row = rows.gates[index] if index < len(rows.gates) else {}
    found = (rows.candidates or {}).get(index)
    code = (rows.codes or {}).get(index, "")
    return Card(
        index=index,
        hunks=hunks(rows.parent_code, code) if code and rows.parent_code else (),
        new_text=tuple(gate.get("new_text", ())),
        gone_text=tuple(gate.get("gone_text", ())),
        dry_run=bool(gate.get("attempts")) and "new_text" in gate,
        notices=tuple(gate.get("notices", ())),
        scanned="notices" in gate,
        tried=tuple(_tried(attempt) for attempt in gate.get("attempts", ())),
        cited=tuple(
            Cited(name, str(items[name]["kind"]), str(items[name]["task_id"]), str(items[name]["quote"]))
            for name in proposal.get("evidence_ids", ())
            if name in items
        ),
        changed=_changed(rows.parent, found),
        spent=_spent(found),
        protocol=tuple(
            (name.replace("_", " "), str(value))
            for name, value in sorted(proposal.get("protocol", {}).items())
            if isinstance(value, int | str) and str(value)
        ),
    )


def _tried(attempt: Row) -> Tried:
    ended = "finished" if attempt["finished"] else str(attempt["stop_reason"]).replace("_", " ")
    if attempt.get("error"):
        ended = str(attempt["error"]).strip().splitlines()[-1]
    elif attempt["finished"] and not attempt["format_valid"]:
        ended = "finished, no valid format"
    calls = int(attempt["model_calls"]) + int(attempt["tool_calls"])
    return Tried(str(attempt["task_id"]), ended, calls, bool(attempt["executed"] and attempt["finished"]))


def _changed(parent: Row | None, candidate: Row | None) -> tuple[Changed, ...]:
    if parent is None or candidate is None:
        return ()
    before = {str(item["task_id"]): item for item in parent.get("outcomes", ())}
    names: Row = parent.get("episode_ids", {})
    others: Row = candidate.get("episode_ids", {})
    found: list[Changed] = []
    for item in candidate.get("outcomes", ()):
        task = str(item["task_id"])
        if task in before and bool(before[task]["correct"]) != bool(item["correct"]):
            found.append(
                Changed(
                    task=task,
                    family=str(item.get("family", "")),
                    fixed=bool(item["correct"]),
                    parent_episode=str(names.get(task, "")),
                    candidate_episode=str(others.get(task, "")),
                )
            )
    return tuple(sorted(found, key=lambda change: (not change.fixed, change.task)))


def _spent(detail: Row | None) -> Spent | None:
    outcomes = cast("Sequence[Row]", (detail or {}).get("outcomes", ()))
    if not outcomes:
        return None
    spent: Row = (detail or {}).get("spent", {})
    return Spent(
        model_calls=sum(int(item.get("model_calls", 0)) for item in outcomes),
        tool_calls=sum(int(item.get("tool_calls", 0)) for item in outcomes),
        tasks=len(outcomes),
        prompt_tokens=spent.get("prompt_tokens"),
        completion_tokens=spent.get("completion_tokens"),
    )


def _shown(rows: StepRows) -> Shown | None:
    if rows.bundle is None:
        return None
    conversations = cast("Sequence[Row]", rows.bundle.get("interactions", ()))
    return Shown(
        conversations=len(conversations),
        tasks=len({str(item["task"]) for item in conversations}),
        items=len(cast("Sequence[Row]", rows.bundle.get("items", ()))),
        steps=rows.history,
    )


def _asked(records: Sequence[Row]) -> tuple[Asked, ...]:
    sums: dict[str, list[Row]] = {}
    for record in records:
        for role, total in cast("Mapping[str, Row]", record.get("totals", {})).items():
            sums.setdefault(role, []).append(total)
    return tuple(_sum(role, totals) for role, totals in sums.items())


def _sum(role: str, totals: Sequence[Row]) -> Asked:
    costs = [float(total["cost"]) for total in totals if total.get("cost") is not None]
    return Asked(
        role=role,
        questions=sum(int(total["exchanges"]) for total in totals),
        failed=sum(int(total["failed"]) for total in totals),
        prompt_tokens=sum(int(total["prompt_tokens"]) for total in totals),
        completion_tokens=sum(int(total["completion_tokens"]) for total in totals),
        cost=sum(costs) if costs else None,
    )
