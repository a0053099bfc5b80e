"""What stands between a proposal and Val, cheapest gate first; the first refusal is the recorded reason.

Bytes (SEL-02), text checks and the leak scan (PROP-07, EVID-06), the dry run (PROP-07), preflight (SEL-01).
Must not know Val or Test results; of Val and Test it knows the public strings that must not appear.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from broker.broker import Broker
from broker.harness import Harness
from harness_lab.check import UNCHANGED, check_program
from harness_lab.dryrun import DryRun, dry_run, new_text, unchanged
from harness_lab.preflight import Designated, PreflightAttempt, preflight
from harness_lab.selection import duplicate_of
from harness_lab.zones import Finding, scan
from verifier.release import Release


class LeakAlarm(Exception):
    """A candidate holds a Val or Test string: the run stops, for a barrier is broken (EVID-06)."""


class Gate(BaseModel):
    """What became of one proposal before Val."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    passed: bool
    reason: str
    notices: tuple[str, ...] = ()
    attempts: tuple[PreflightAttempt, ...] = ()
    new_text: tuple[str, ...] = ()
    """What the dry run showed to reach the model under the candidate and not under its parent (T02)."""
    gone_text: tuple[str, ...] = ()
    """The other way round."""


@dataclass(frozen=True)
class Gates:
    """Everything that the candidates of one step are held against."""

    broker: Broker
    parent: Harness
    parent_run: DryRun
    designated: Designated
    dry_tasks: Sequence[Mapping[str, Any]]
    accepted_answers: frozenset[str]
    """Train answers that the evidence reveals: the text of accepted submissions."""
    seed: int

    async def examine(self, candidate: Harness, earlier: Sequence[Harness]) -> Gate:
        """Raises `LeakAlarm`, `SandboxLost` or `ModelUnavailable`; everything else is a reason."""
        if (same := duplicate_of(candidate, self.parent, earlier)) is not None:
            return Gate(passed=False, reason=f"byte-identical to {same}")
        checked = check_program(candidate.code, self.parent.code)
        if checked.errors:
            return Gate(passed=False, reason=checked.errors[0], notices=checked.notices)
        leaks = self._leaks(candidate)
        notices = (*checked.notices, *(leak.words() for leak in leaks))
        refused = next((leak for leak in leaks if leak.severity == "refused"), None)
        if refused is not None:
            return Gate(passed=False, reason=f"leak: {refused.words()}", notices=notices)
        run = await dry_run(self.broker.sandboxes, candidate, self.dry_tasks)
        if unchanged(self.parent_run, run):
            return Gate(passed=False, reason=UNCHANGED, notices=notices)
        tried = await preflight(
            self.broker, candidate, self.designated, self.broker.release.split("train"), self.seed
        )
        return Gate(
            passed=tried.passed,
            reason=tried.reason,
            notices=notices,
            attempts=tried.attempts,
            new_text=new_text(self.parent_run, run),
            gone_text=new_text(run, self.parent_run),
        )

    def _leaks(self, candidate: Harness) -> tuple[Finding, ...]:
        release: Release = self.broker.release
        train, held_out = release.split("train"), (*release.split("val"), *release.split("test"))
        found = scan(
            candidate.code,
            ids=(task.id for task in train),
            prompts=(task.prompt for task in train),
            answers=self.accepted_answers,
            held_out=[text for task in held_out for text in (task.id, task.prompt)],
            known=self.parent.code,
        )
        alarm = next((leak for leak in found if leak.severity == "alarm"), None)
        if alarm is not None:
            raise LeakAlarm(f"a candidate holds a Val or Test string: {alarm.words()}; the run stops")
        return found
