"""What an interpreter is asked and may answer about one reply (FB-05), as plain data.

Public by type: question, outputs, tool calls, answer, reply. There is no field for a reference or a verdict.
Addresses are those of `harness_lab/fields.py` for a single episode, for example `episode/call/0/text`.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from harness_lab.labels import Label

FeedbackType = Literal["acceptance", "correction", "new_information", "new_requirement", "ambiguous"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolView(_Frozen):
    label: ClassVar[Label] = "public"

    code: str
    stdout: str
    error: str


class InterpretationRequest(_Frozen):
    """One reply and the public record up to it."""

    label: ClassVar[Label] = "public"

    question: str
    outputs: tuple[str, ...]
    tools: tuple[ToolView, ...]
    submission: int = Field(default=0, ge=0)
    """Which submission of the episode was replied to, from 0."""
    answer: str
    reply: str

    def parts(self) -> dict[str, str]:
        """Everything that the interpreter sees, by the address that an annotation may name."""
        outputs = {f"episode/call/{place}/text": text for place, text in enumerate(self.outputs)}
        tools = {
            f"episode/tool/{place}/{part}": getattr(tool, part)
            for place, tool in enumerate(self.tools)
            for part in ("code", "stdout", "error")
        }
        return {
            "episode/question": self.question,
            **outputs,
            **tools,
            f"episode/submission/{self.submission}/text": self.answer,
            f"episode/submission/{self.submission}/reply": self.reply,
        }

    def addresses(self) -> frozenset[str]:
        """Every field address that an annotation may name."""
        return frozenset(self.parts())


def _no_boolean(value: object) -> object:
    # Python's True equals 1.
    if isinstance(value, bool):
        raise ValueError("a reward is -1, 0 or 1, not a boolean")
    return value


class Annotation(_Frozen):
    """A hypothesis about a reply, never a fact (FB-07)."""

    label: ClassVar[Label] = "public"

    status: Literal["hypothesis"] = "hypothesis"
    """Travels with it to whoever reads it."""
    reward: Annotated[Literal[-1, 0, 1], BeforeValidator(_no_boolean)]
    type: FeedbackType
    evidence: str = Field(max_length=2000)
    """What in the record the reply seems to speak about."""
    fields: tuple[str, ...] = Field(max_length=16)
    """Field addresses that the interpreter finds relevant."""
    hint: str = Field(default="", max_length=1000)
    """What a better procedure might do."""
