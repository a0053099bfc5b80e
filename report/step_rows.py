"""Reads what the pages of a run's steps need from stage rows and the store. It only reads.

Must not know how a page looks; a lost or never recorded object leaves its part out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from catalog.models import Stage
from report.step_view import Row, StepRows

Read = Callable[[str], dict[str, Any]]
"""Body of a stored record by its digest; empty when it is lost."""


def step_rows(
    decisions: Sequence[Row],
    measurements: Sequence[Row],
    stages: Sequence[Stage],
    read: Read,
    program: Callable[[str], str],
) -> list[StepRows]:
    """One entry a decision. `measurements` carry their outcomes."""
    return [_step(decision, measurements, stages, read, program) for decision in decisions]


def _step(
    row: Row,
    measurements: Sequence[Row],
    stages: Sequence[Stage],
    read: Read,
    program: Callable[[str], str],
) -> StepRows:
    cycle, step, decision = int(row["cycle"]), int(row["step"]), row["decision"]
    made = {stage.name: stage for stage in stages if (stage.cycle, stage.step) == (cycle, step)}
    proposed = read(made["propose"].output) if "propose" in made else {}
    gated = read(made["preflight"].output) if "preflight" in made else {}
    collected = read(made["collect"].output) if "collect" in made else {}
    exchanges = [read(record["exchanges"]) for record in (collected, proposed) if record.get("exchanges")]
    details = {
        (item["kind"], item["detail"].get("candidate")): item["detail"]
        for item in measurements
        if item["cycle"] == cycle and item["detail"].get("step") == step
    }
    proposals: list[Mapping[str, Any]] = proposed.get("proposals", [])
    return StepRows(
        cycle=cycle,
        step=step,
        decision=decision,
        proposals=proposals,
        gates=gated.get("entries", []),
        bundle=read(proposed["bundle"]) or None if proposed.get("bundle") else None,
        history=_history(made.get("propose")),
        exchanges=exchanges,
        parent=details.get(("step_val_parent", -1)),
        candidates={
            index: detail for (kind, index), detail in details.items() if kind == "step_val_candidate"
        },
        parent_code=program(str(decision.get("parent", ""))),
        codes={
            index: str(item["harness"]["code"])
            for index, item in enumerate(proposals)
            if item.get("command") == "propose"
        },
    )


def _history(stage: Stage | None) -> int:
    inputs: Mapping[str, str] = stage.parameters.get("inputs", {}) if stage is not None else {}
    return sum(name.startswith("history-") for name in inputs)
