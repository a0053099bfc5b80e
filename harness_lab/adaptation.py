"""The paper's adaptation protocol: batches of Train conversations, one update a batch (SCHED-10).

The best program on the adaptation set is selected; Val only compares it with the initial one. Must not know
how programs improve. Batch scores are private: they choose, and never become evidence.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from broker.record import EpisodeRecord
from harness_lab.evidence import Interaction
from verifier.grade import Grader
from verifier.task import NOT_SUBMITTED, Verdict


class Batch(BaseModel):
    """First answers of one program in one batch of conversations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    update: int = Field(ge=1)
    harness: str
    """Digest of the program that ran."""
    correct: int = Field(ge=0)
    valid: int = Field(ge=0)
    total: int = Field(ge=1)
    """Conversations that came to an end; those lost by a fault of ours are not among them."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.total


def score_batch(update: int, harness: str, interactions: Sequence[Interaction], grader: Grader) -> Batch:
    """Judge the first answers of a batch (FB-02). ValueError when every conversation was lost."""
    if not interactions:
        raise ValueError(f"batch {update} holds no conversation")
    verdicts = [_first(item.task.id, item.record, grader) for item in interactions]
    return Batch(
        update=update,
        harness=harness,
        correct=sum(verdict.correct for verdict in verdicts),
        valid=sum(verdict.format_valid for verdict in verdicts),
        total=len(verdicts),
    )


def _first(task_id: str, record: EpisodeRecord, grader: Grader) -> Verdict:
    # What is submitted without a model call is not the model's answer.
    if not record.submissions or not record.model_calls:
        return NOT_SUBMITTED
    return grader.grade(task_id, record.submissions[0].text)


def best_program(batches: Sequence[Batch]) -> str:
    """The program with the largest share of right first answers over all batches that it ran.

    Among equals the one with more conversations, then the earliest. Batches hold different tasks, so the
    share of a program that ran one batch is a noisy one; the protocol selects by it all the same.
    """
    if not batches:
        raise ValueError("no batch was run")
    names = list(dict.fromkeys(batch.harness for batch in batches))

    def standing(name: str) -> tuple[float, int]:
        own = [batch for batch in batches if batch.harness == name]
        total = sum(batch.total for batch in own)
        return sum(batch.correct for batch in own) / total, total

    # max keeps the first of equals, and the names are in the order in which they were tried.
    return max(names, key=standing)
