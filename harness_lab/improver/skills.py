"""The improver `skills`: a chat model edits one instruction or one scoped skill of a skill file (PROP-09).

The conversation is that of `llm`; a proposal holds an edit instead of a program, and the file's format
(`skill_file.py`) sees to it that nothing else changes.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from broker.harness import Harness
from harness_lab.chat import ChatEndpoint
from harness_lab.check import check_program
from harness_lab.improver.base import ProposalContext
from harness_lab.improver.conversation import (
    CALLS,
    CONTEXT_TOKENS,
    READS,
    REPAIRS,
    ConversingImprover,
    NotAccepted,
)
from harness_lab.improver.prompts import render
from harness_lab.skill_file import (
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_INSTRUCTIONS,
    MOST_SKILLS,
    Edit,
    SkillFileError,
    apply_edit,
    first_problem,
    read_skill_file,
    scope_name,
)

_PROPOSE: Final = (
    '{"command": "propose", "edit": {"action": "add|remove|revise", "kind": "skill|instruction",\n'
    ' "name": "...", "scope": "family:<name>", "text": "..."}, "hypothesis": "...", "rationale": "...",\n'
    ' "evidence_ids": ["e0:0", "e1:0"]}'
)
_WORDS: Final = {"type": ["string", "null"]}
_EDIT: Final = {
    "type": ["object", "null"],
    "properties": {
        "action": {"type": "string", "enum": ["add", "remove", "revise"]},
        "kind": {"type": "string", "enum": ["skill", "instruction"]},
        "name": {"type": "string"},
        "scope": _WORDS,
        "text": _WORDS,
    },
    "required": ["action", "kind", "name", "scope", "text"],
    "additionalProperties": False,
}


class EntryEditor:
    """A proposal holds one edit of one entry."""

    kind = "skills"
    fields: Mapping[str, Mapping[str, Any]] = {"edit": _EDIT}

    def system(self) -> str:
        return render(
            "skills_system",
            reads=READS,
            repairs=REPAIRS,
            calls=CALLS,
            propose=_PROPOSE,
            longest=LONGEST_TEXT,
            longest_name=LONGEST_NAME,
            most_skills=MOST_SKILLS,
            most_instructions=MOST_INSTRUCTIONS,
        )

    def scopes(self, context: ProposalContext) -> tuple[str, ...]:
        """`all`, and the families and subtopics of the evidence's tasks."""
        tasks = [item.task for item in context.evidence.interactions]
        families = {scope_name("family", task.family) for task in tasks}
        return ("all", *sorted(families), *sorted({scope_name("subtopic", task.subtopic) for task in tasks}))

    def unfit(self, parent: Harness) -> str | None:
        try:
            read_skill_file(parent.code)
        except SkillFileError as error:
            return f"the parent is no skill file, which is all that the improver `skills` edits: {error}"
        return None

    def build(self, command: Mapping[str, Any], parent: Harness, context: ProposalContext) -> str:
        if "code" in command:
            raise NotAccepted("this run edits entries only: give an edit, and no code")
        given = command.get("edit")
        if not isinstance(given, dict):
            raise NotAccepted("a proposal needs an edit: an object with action, kind, name, scope and text")
        try:
            edit = Edit.model_validate(given)
            code = apply_edit(parent.code, edit, self.scopes(context))
        except ValidationError as error:
            raise NotAccepted(f"edit, {first_problem(error)}") from None
        except SkillFileError as error:
            raise NotAccepted(str(error)) from None
        found = check_program(code, parent.code)
        if found.errors:
            raise NotAccepted("; ".join(found.errors))
        return code


class SkillsImprover(ConversingImprover):
    """The improver `skills`."""

    def __init__(self, endpoint: ChatEndpoint, context_tokens: int = CONTEXT_TOKENS) -> None:
        super().__init__(endpoint, EntryEditor(), context_tokens)
