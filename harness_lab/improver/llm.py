"""The improver `llm`: any OpenAI-compatible chat endpoint replaces whole programs (PROP-02, PROP-04).

The conversation is `conversation.py`; here stands what a proposal of it holds, and the checks of its text.
"""

from collections.abc import Mapping
from typing import Any, Final

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

__all__ = ["CALLS", "READS", "REPAIRS", "ChatImprover", "ProgramEditor"]

_PROPOSE: Final = (
    '{"command": "propose", "code": "<the whole program>", "hypothesis": "...", "rationale": "...",\n'
    ' "evidence_ids": ["e0:0", "e1:0"]}'
)
_MOST_PROBLEMS: Final = 3


class ProgramEditor:
    """A proposal holds a whole program."""

    kind = "llm"
    fields: Mapping[str, Mapping[str, Any]] = {"code": {"type": ["string", "null"]}}

    def system(self) -> str:
        return render("llm_system", reads=READS, repairs=REPAIRS, calls=CALLS, propose=_PROPOSE)

    def scopes(self, context: ProposalContext) -> tuple[str, ...]:
        return ()

    def unfit(self, parent: Harness) -> str | None:
        return None

    def build(self, command: Mapping[str, Any], parent: Harness, context: ProposalContext) -> str:
        code = command.get("code")
        if not isinstance(code, str) or not code.strip():
            raise NotAccepted("a proposal needs code: the text of the whole program")
        if code == parent.code:
            raise NotAccepted("the program is byte-identical to its parent")
        found = check_program(code, parent.code)
        if found.errors:
            raise NotAccepted("; ".join(found.errors[:_MOST_PROBLEMS]))
        return code


class ChatImprover(ConversingImprover):
    """The improver `llm`."""

    def __init__(self, endpoint: ChatEndpoint, context_tokens: int = CONTEXT_TOKENS) -> None:
        super().__init__(endpoint, ProgramEditor(), context_tokens)
