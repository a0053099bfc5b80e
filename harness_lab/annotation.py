"""What an interpreter is asked and may answer about one reply (FB-05), as plain data.

Public by type: question, outputs, tool calls, answer, reply. There is no field for a reference or a verdict.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

FeedbackType = Literal["acceptance", "correction", "new_information", "new_requirement", "ambiguous"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolView(_Frozen):
    code: str
    stdout: str
    error: str


class InterpretationRequest(_Frozen):
    """One reply and the public record up to it. Addresses name its parts, for example `outputs/0`."""

    question: str
    outputs: tuple[str, ...]
    tools: tuple[ToolView, ...]
    answer: str
    reply: str

    def addresses(self) -> frozenset[str]:
        """Every field address that an annotation may name."""
        outputs = (f"outputs/{index}" for index in range(len(self.outputs)))
        tools = (
            f"tools/{index}/{part}"
            for index in range(len(self.tools))
            for part in ("code", "stdout", "error")
        )
        return frozenset(("question", "answer", "reply", *outputs, *tools))


def _no_boolean(value: object) -> object:
    # Python's True equals 1.
    if isinstance(value, bool):
        raise ValueError("a reward is -1, 0 or 1, not a boolean")
    return value


class Annotation(_Frozen):
    """A hypothesis about a reply, never a fact (FB-07)."""

    reward: Annotated[Literal[-1, 0, 1], BeforeValidator(_no_boolean)]
    type: FeedbackType
    evidence: str = Field(max_length=2000)
    """What in the record the reply seems to speak about."""
    fields: tuple[str, ...] = Field(max_length=16)
    """Field addresses that the interpreter finds relevant."""
    hint: str = Field(default="", max_length=1000)
    """What a better procedure might do."""
