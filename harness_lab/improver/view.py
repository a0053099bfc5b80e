"""What a chat improver sees of the evidence: a bounded overview, and any public field in full by address.

Public by type: everything comes from the proposal context. A shortened preview replaces no read (PROP-05)
and says that it is shortened. What does not fit into the auxiliary's context is left out in a stated order.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from broker.harness import Harness
from harness_lab.evidence import Interaction
from harness_lab.execution_patterns import execution_patterns
from harness_lab.fields import Fields, Reading, bundle_fields, located
from harness_lab.improver.base import ProposalContext
from harness_lab.improver.fit import first_that_fits
from harness_lab.improver.prompts import render

READ_LENGTH: Final = 6000
"""Characters of one read."""


@dataclass(frozen=True)
class Detail:
    """How much of everything an overview shows."""

    question: int = 750
    text: int = 600
    """Characters of a model's text, of an observation, of a submission."""
    history: int = 20
    """Steps, the latest."""
    accepted: bool = True
    """Whether interactions without a citable observation are shown."""
    columns: bool = True
    """Whether the inventory's columns are shown with types and examples."""
    tables: bool = True
    program: int | None = None
    """Characters of the parent program; None is all."""


DETAILS: Final = (
    Detail(),
    Detail(question=500, text=400, accepted=False),
    Detail(question=300, text=200, history=10, accepted=False, columns=False),
    Detail(question=200, text=120, history=4, accepted=False, columns=False, tables=False),
    Detail(question=80, text=0, history=1, accepted=False, columns=False, tables=False, program=4000),
)
"""From the richest to the poorest."""


def overview(
    parent: Harness,
    context: ProposalContext,
    index: int,
    count: int,
    *,
    room: int = 1 << 20,
    scopes: Sequence[str] = (),
) -> str:
    """The first message of a proposal: program, resources, budgets, patterns, evidence and history in short.

    `room`: tokens, estimated. `scopes`: what a skill's scope may be, where skills are edited.
    """
    versions: list[Callable[[], str]] = [
        partial(_overview, parent, context, (index + 1, count), scopes, detail) for detail in DETAILS
    ]
    return first_that_fits(versions, room)


def _overview(
    parent: Harness, context: ProposalContext, number: tuple[int, int], scopes: Sequence[str], detail: Detail
) -> str:
    evidence = context.evidence
    cited = {item.task_id for item in evidence.items}
    episodes = [
        _preview(place, item, detail)
        for place, item in enumerate(evidence.interactions)
        if detail.accepted or item.task.id in cited
    ]
    cut_program = detail.program is not None and len(parent.code) > detail.program
    return render(
        "overview",
        number=number[0],
        count=number[1],
        cuts=_cuts(context, detail, len(evidence.interactions) - len(episodes)),
        program=parent.code[: detail.program] if cut_program else parent.code,
        program_note=f", its first {detail.program} of {len(parent.code)} characters" if cut_program else "",
        scopes=", ".join(scopes),
        budgets=_json(context.budgets.model_dump(mode="json")),
        patterns=_json(
            {name: found.model_dump() for name, found in execution_patterns(evidence.interactions).items()}
        ),
        evidence=_json([item.model_dump(mode="json") for item in evidence.items]),
        episodes=[_json(episode) for episode in episodes],
        history=_json([entry.model_dump(mode="json") for entry in context.history[-detail.history :]]),
        inventory=_json(_inventory(context.inventory, detail)),
    )


def _cuts(context: ProposalContext, detail: Detail, hidden: int) -> list[str]:
    cuts: list[str] = []
    if hidden:
        cuts.append(f"{hidden} interactions in which nothing citable was seen")
    if (older := len(context.history) - detail.history) > 0:
        cuts.append(f"the {older} oldest steps of the history: read `history`")
    if not detail.tables:
        cuts.append("the tables of the inventory: read `inventory`")
    elif not detail.columns:
        cuts.append("types and examples of columns: read `inventory`")
    if detail != DETAILS[0]:
        cuts.append(f"texts of interactions are cut after {detail.text} characters")
    return cuts


def _inventory(inventory: dict[str, Any], detail: Detail) -> dict[str, Any]:
    if detail.columns or "tables" not in inventory:
        return inventory
    tables: list[dict[str, Any]] = inventory["tables"]
    if not detail.tables:
        return {**inventory, "tables": f"{len(tables)} tables"}
    short = [
        {"path": table.get("path"), "columns": [column.get("name") for column in table.get("columns", [])]}
        for table in tables
    ]
    return {**inventory, "tables": short}


def read_field(address: str, offset: int, parent: Harness, context: ProposalContext) -> Reading:
    """A public field from an offset, with what is left. Raises UnknownField, a KeyError, with the reason."""
    return fields(parent, context).read(address, offset, READ_LENGTH)


def fields(parent: Harness, context: ProposalContext) -> Fields:
    """Everything that may be read, by the grammar of `harness_lab/fields.py`."""
    return Fields(
        {
            "program": lambda: parent.code,
            "inventory": lambda: context.inventory,
            "budgets": lambda: context.budgets.model_dump(mode="json"),
            "history": lambda: [entry.model_dump(mode="json") for entry in context.history],
            **bundle_fields(context.evidence),
        }
    )


def _preview(number: int, interaction: Interaction, detail: Detail) -> dict[str, Any]:
    record = interaction.record
    outputs = [call.text for call in record.model_calls]
    failed = next((call for call in record.tool_calls if call.error), None)
    return {
        "episode": number,
        "family": interaction.task.family,
        "subtopic": interaction.task.subtopic,
        "question": _head(interaction.task.prompt, detail.question),
        "first_output": _head(outputs[0], detail.text) if outputs else "",
        "last_output": _tail(outputs[-1], detail.text) if len(outputs) > 1 else "",
        "failed_call": {"code": _head(failed.code, detail.text), "error": _tail(failed.error, detail.text)}
        if failed
        else None,
        "submitted": [_head(submission.text, detail.text) for submission in record.submissions],
        "replies": [reply.text for reply in interaction.given],
        "hypotheses_about_replies": [
            located(note, f"episode/{number}") for _, note in interaction.annotations
        ],
        "stop_reason": record.stop_reason.value,
        "calls": {"model": len(record.model_calls), "tool": len(record.tool_calls)},
    }


def _head(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} [cut: {len(text) - limit} more characters]"


def _tail(text: str, limit: int) -> str:
    start = len(text) - limit
    return text if start <= 0 else f"[cut: {start} characters before] {text[start:]}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
