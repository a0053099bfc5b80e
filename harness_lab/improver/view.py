"""What a chat improver sees of the evidence: a bounded overview, and any public field in full by address.

Public by type: everything comes from the proposal context. A shortened preview replaces no read (PROP-05).
"""

import json
from typing import Any, Final

from broker.harness import Harness
from harness_lab.evidence import Interaction
from harness_lab.fields import Fields, bundle_fields, located
from harness_lab.improver.base import ProposalContext

_QUESTION, _TEXT, _READ = 750, 600, 6000
_HISTORY: Final = 20


def overview(parent: Harness, context: ProposalContext, index: int, count: int) -> str:
    """The first message of a proposal: program, resources, budgets, evidence and history in short."""
    evidence = context.evidence
    shown: dict[str, Any] = {
        "candidate": f"{index + 1} of {count}: choose a cause that differs from what the others would choose",
        "budgets": context.budgets.model_dump(mode="json"),
        "inventory": context.inventory,
        "history": [entry.model_dump(mode="json") for entry in context.history[-_HISTORY:]],
        "evidence": [item.model_dump(mode="json") for item in evidence.items],
        "episodes": [_preview(number, item) for number, item in enumerate(evidence.interactions)],
        "readable": "program, inventory, history, episode/<n>/question, episode/<n>/call/<i>/prompt, "
        "episode/<n>/call/<i>/text, episode/<n>/tool/<i>/code (stdout, error), episode/<n>/annotation",
    }
    return f"The parent program:\n{parent.code}\n\nEverything else:\n{json.dumps(shown)}"


def read_field(address: str, offset: int, parent: Harness, context: ProposalContext) -> str:
    """A public field from an offset, with what is left. Raises UnknownField, a KeyError, with the reason."""
    found = fields(parent, context).read(address, offset, _READ)
    return f"{address} from {found.offset}, {found.left} characters left after this:\n{found.text}"


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


def _preview(number: int, interaction: Interaction) -> dict[str, Any]:
    record = interaction.record
    outputs = [call.text for call in record.model_calls]
    failed = next((call for call in record.tool_calls if call.error), None)
    return {
        "episode": number,
        "question": interaction.task.prompt[:_QUESTION],
        "first_output": outputs[0][:_TEXT] if outputs else "",
        "last_output": outputs[-1][-_TEXT:] if len(outputs) > 1 else "",
        "failed_call": {"code": failed.code[:1000], "error": failed.error[-500:]} if failed else None,
        "submitted": [submission.text[:_TEXT] for submission in record.submissions],
        "replies": [reply.text for reply in interaction.given],
        "hypotheses_about_replies": [
            located(note, f"episode/{number}") for _, note in interaction.annotations
        ],
        "stop_reason": record.stop_reason.value,
        "calls": {"model": len(record.model_calls), "tool": len(record.tool_calls)},
    }
