"""What a chat improver sees of the evidence: a bounded overview, and any public field in full by address.

Public by type: everything comes from the proposal context. A shortened preview replaces no read (PROP-05).
"""

import json
from typing import Any, Final

from broker.harness import Harness
from harness_lab.evidence import Interaction
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
        "records": [_preview(number, item) for number, item in enumerate(evidence.interactions)],
        "readable": "program, records/<n>/question, records/<n>/outputs/<i>, records/<n>/tools/<i>, "
        "records/<n>/prompt, records/<n>/annotations, history",
    }
    return f"The parent program:\n{parent.code}\n\nEverything else:\n{json.dumps(shown)}"


def read_field(address: str, offset: int, parent: Harness, context: ProposalContext) -> str:
    """A public field from an offset, with what is left. Raises KeyError for an unknown address."""
    text = _field(address, parent, context)
    start = max(0, min(offset, len(text)))
    part = text[start : start + _READ]
    left = len(text) - start - len(part)
    return f"{address} from {start}, {left} characters left after this:\n{part}"


def _field(address: str, parent: Harness, context: ProposalContext) -> str:
    if address == "program":
        return parent.code
    if address == "history":
        return json.dumps([entry.model_dump(mode="json") for entry in context.history])
    try:
        _, number, name, *rest = address.split("/")
        interaction = context.evidence.interactions[int(number)]
        place = int(rest[0]) if rest else 0
        return _part(interaction, name, place)
    except (ValueError, IndexError) as error:
        raise KeyError(address) from error


def _part(interaction: Interaction, name: str, place: int) -> str:
    record = interaction.record
    match name:
        case "question":
            return interaction.task.prompt
        case "outputs":
            return record.model_calls[place].text
        case "tools":
            call = record.tool_calls[place]
            return f"code:\n{call.code}\nstdout:\n{call.stdout}\nerror:\n{call.error}"
        case "prompt":
            messages = record.model_calls[place].messages
            return "\n".join(f"[{message.role}] {message.content}" for message in messages)
        case "annotations":
            return json.dumps([note.model_dump(mode="json") for _, note in interaction.annotations])
        case _:
            raise ValueError(name)


def _preview(number: int, interaction: Interaction) -> dict[str, Any]:
    record = interaction.record
    outputs = [call.text for call in record.model_calls]
    failed = next((call for call in record.tool_calls if call.error), None)
    return {
        "record": number,
        "question": interaction.task.prompt[:_QUESTION],
        "first_output": outputs[0][:_TEXT] if outputs else "",
        "last_output": outputs[-1][-_TEXT:] if len(outputs) > 1 else "",
        "failed_call": {"code": failed.code[:1000], "error": failed.error[-500:]} if failed else None,
        "submitted": [submission.text[:_TEXT] for submission in record.submissions],
        "replies": [reply.text for reply in interaction.given],
        "hypotheses_about_replies": [note.model_dump(mode="json") for _, note in interaction.annotations],
        "stop_reason": record.stop_reason.value,
        "calls": {"model": len(record.model_calls), "tool": len(record.tool_calls)},
    }
