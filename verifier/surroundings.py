"""What a task that works on files finds around it: public, as the program would see it (Harbor tasks).

Its files are the task's assets: those below `work/` lie in /work from the start, those below `steps/<name>/`
come with that step. Must not know scripts or references.
"""

from pydantic import BaseModel, ConfigDict, Field


class Step(BaseModel):
    """One of several steps in the same working folder; a submission ends it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    prompt: str


class Surroundings(BaseModel):
    """Beside files: environment variables, steps, and what a run must offer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    variables: dict[str, str] = Field(default_factory=dict[str, str])
    """Set for the code that the program sends."""
    steps: tuple[Step, ...] = ()
    """Empty, or two and more; the first one's prompt is the task's."""
    requires: tuple[str, ...] = ()
    """What it needs that no sandbox here gives, e.g. `network`: it cannot be run, and says so."""
