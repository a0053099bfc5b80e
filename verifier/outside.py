"""What a verdict needs from outside the grader: a judge's word on criteria, and the rewards of a script.

The grader asks (`Needs`), the broker gets the answers and hands them back (`Measured`). Needs are private:
they go to the judge or into the check sandbox and nowhere else. Uses no pydantic, as the grader's process
does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from verifier.script import Script, read_script


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """One criterion that a judge model decides."""

    criterion: str
    """Its name."""
    description: str
    """Private."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one submission needs; the grader gives a verdict once all of it was measured."""

    judge: tuple[JudgeQuestion, ...] = ()
    script: Script | None = None

    def to_json(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes) -> "Needs":
        plain: dict[str, Any] = orjson.loads(data)
        return cls(
            judge=tuple(JudgeQuestion(**question) for question in plain["judge"]),
            script=None if plain["script"] is None else read_script(plain["script"]),
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers."""

    judged: Mapping[str, float] = field(default_factory=dict[str, float])
    """v by criterion, in [0, 1]."""
    rewards: Mapping[str, float] | None = None
    """What the script's reward file said, of several steps combined."""
    refused: str = ""
    """Why no script could run: the program's own doing, e.g. it left more files than a workspace may hold."""

    def to_json(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes) -> "Measured":
        return cls(**orjson.loads(data))
