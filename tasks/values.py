"""The small values that stages pass to each other: references into the store, never the things themselves."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from catalog.store import Ref


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Finalist(_Value):
    """One proposed program on its way to Val."""

    index: int
    """Its place in the step's proposals; the earliest wins a tie (SEL-06)."""
    program: Ref
    executable: bool
    """It passed the checks, the dry run and preflight; only then is it measured on Val."""
    reason: str
    """Why it is not executable, or how preflight ended."""
    hypothesis: str
    rationale: str
    evidence_ids: tuple[str, ...]


class Finalists(_Value):
    """All proposals of a step with what became of them."""

    record: Ref
    entries: tuple[Finalist, ...]
    skipped: tuple[str, ...] = ()
    """Reasons of the proposals that were never made."""

    def programs(self) -> tuple[tuple[int, Ref], ...]:
        """Index and program of those that go to Val."""
        return tuple((entry.index, entry.program) for entry in self.entries if entry.executable)


class Selected(_Value):
    """The outcome of a step."""

    selected: Ref
    """The program that the next step starts from."""
    adopted: bool
    record: Ref
    """The full decision."""


class Measured(_Value):
    """A finished evaluation."""

    record: Ref
    """The evaluation: one outcome a task."""
    episodes: Ref
    """The graded episodes. Private: only the report and replay read them."""


class Validated(_Value):
    """An export that another process has loaded, checked and measured."""

    measured: Measured
    proof: dict[str, Any]
    """What was loaded, and how far trainer, rollout engine and export were apart (`rl.job_spec.Loaded`)."""


class Trained(_Value):
    """A finished training: an export that nothing has accepted yet."""

    export: Ref
    panel: Ref
    """Token panel scored by the trainer, for the validation to compare with."""
    updates: tuple[dict[str, Any], ...]
    """Metrics, one entry an update."""
    evaluations: tuple[dict[str, Any], ...] = ()
    """Val between updates: `update`, `seconds`, and `record`, the evaluation's digest, or `lost`."""
    facts: dict[str, Any]
    """Seconds, memory, identities as the training process gave them."""
