"""What stands between a proposal and Val, cheapest gate first; the first refusal is the recorded reason.

Bytes (SEL-02), text checks and the leak scan (PROP-07, EVID-06), the dry run (PROP-07), preflight (SEL-01).
Must not know Val or Test results; of Val and Test it knows the public strings that must not appear.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from broker.broker import Broker
from broker.harness import Harness
from harness_lab.change import Change, change_report
from harness_lab.check import UNCHANGED, check_program
from harness_lab.dry_scripts import MORE_SCRIPTS, SCRIPTS
from harness_lab.dryrun import DryRun, dry_run, new_text, unchanged
from harness_lab.preferences import letter_preference
from harness_lab.preflight import Designated, Preflight, PreflightAttempt, preflight
from harness_lab.selection import duplicate_of
from harness_lab.words import WITHHELD, HeldOut, held_out_texts, texts_in
from harness_lab.zones import Finding, scan
from verifier.release import Release

IDENTITY: Final = "gates/3"
"""Raised with every change of what passes."""


WORDS_WITHHELD: Final = "the words that came with it hold a string of Val or Test, or a reference's mark"


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
    change: Change | None = None
    """What the dry run showed against the parent, line by line; None where it was not reached."""


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
    more_dry_tasks: Sequence[Mapping[str, Any]] = ()
    """Of other families, subtopics and answer forms, for a candidate that the first ones find unchanged."""
    _wide: dict[str, DryRun] = field(default_factory=dict[str, DryRun], init=False, repr=False)
    """The parent under all scripts on all dry tasks, once it was needed."""

    async def examine(
        self, candidate: Harness, earlier: Sequence[Harness], *, withheld: bool = False
    ) -> Gate:
        """Raises `LeakAlarm`, `SandboxLost` or `ModelUnavailable`; everything else is a reason.

        `withheld`: the words that came with it held a held-out string, so it goes no further.
        """
        if (same := duplicate_of(candidate, self.parent, earlier)) is not None:
            return Gate(passed=False, reason=f"byte-identical to {same}")
        # First, for a held-out string is an alarm also in a program that would be refused anyway.
        written = await asyncio.to_thread(self._leaks, candidate)
        if withheld:
            return Gate(passed=False, reason=WORDS_WITHHELD)
        checked = check_program(candidate.code, self.parent.code)
        if checked.errors:
            return Gate(passed=False, reason=checked.errors[0], notices=checked.notices)
        if (leak := _refused(written)) is not None:
            return Gate(passed=False, reason=leak, notices=_notices(checked.notices, written))
        parent_run, run = await self._rehearse(candidate)
        sent = await asyncio.to_thread(self._leaks, candidate, run.sent_text)
        change = change_report(
            candidate.code, self.parent.code, parent_run, run, unchanged=unchanged(parent_run, run)
        )
        problem = UNCHANGED if change.unchanged else _refused(sent) or self._preference(parent_run, run)
        gate = Gate(
            passed=False,
            reason=problem or "",
            notices=_notices(checked.notices, sent),
            new_text=new_text(parent_run, run),
            gone_text=new_text(run, parent_run),
            change=change,
        )
        if problem is not None:
            return gate
        tried = await preflight(
            self.broker, candidate, self.designated, self.broker.release.split("train"), self.seed
        )
        tried = await asyncio.to_thread(self._cleaned, tried)
        return gate.model_copy(
            update={"passed": tried.passed, "reason": tried.reason, "attempts": tried.attempts}
        )

    async def _rehearse(self, candidate: Harness) -> tuple[DryRun, DryRun]:
        """Parent and candidate under the first scripts; where those see no change, under all on all tasks."""
        run = await dry_run(self.broker.sandboxes, candidate, self.dry_tasks)
        if not unchanged(self.parent_run, run):
            return self.parent_run, run
        tasks, scripts = (*self.dry_tasks, *self.more_dry_tasks), (*SCRIPTS, *MORE_SCRIPTS)
        if "parent" not in self._wide:
            self._wide["parent"] = await dry_run(self.broker.sandboxes, self.parent, tasks, scripts)
        return self._wide["parent"], await dry_run(self.broker.sandboxes, candidate, tasks, scripts)

    def _leaks(self, candidate: Harness, sent: Sequence[str] = ()) -> tuple[Finding, ...]:
        release: Release = self.broker.release
        train = release.split("train")
        found = scan(
            candidate.code,
            ids=(task.id for task in train),
            prompts=(task.prompt for task in train),
            answers=self.accepted_answers,
            held_out=held_out_texts(release),
            known=self.parent.code,
            sent=sent,
            public="\n".join((*self._public(), *self.parent_run.sent_text)),
        )
        alarm = next((leak for leak in found if leak.severity == "alarm"), None)
        if alarm is not None:
            raise LeakAlarm(f"a candidate holds a Val or Test string: {alarm.words()}; the run stops")
        return found

    def _cleaned(self, tried: Preflight) -> Preflight:
        """The text of a crash is the program's own words, and later proposals are shown it (EVID-05)."""
        held_out = HeldOut.of(self.broker.release, (self.parent.code, *self._public()))
        crashed = [attempt.error for attempt in tried.attempts if attempt.error is not None]
        if not any(map(held_out.stands_in, crashed)):
            return tried
        attempts = tuple(
            attempt.model_copy(update={"error": attempt.error and WITHHELD}) for attempt in tried.attempts
        )
        return Preflight(passed=tried.passed, reason=f"the program fails: {WITHHELD}", attempts=attempts)

    def _public(self) -> Iterator[str]:
        """What every program is given, the dry run's own tasks and scripts included."""
        for task in (*self.dry_tasks, *self.more_dry_tasks):
            yield from texts_in(task)
        for script in (*SCRIPTS, *MORE_SCRIPTS):
            yield from texts_in(script.model_dump())

    def _preference(self, parent_run: DryRun, run: DryRun) -> str | None:
        """A sentence that prefers an option and first comes together in what is sent (T04)."""
        given = sorted({text for text in self._public() if len(text) > _SHORT}, key=len, reverse=True)
        for text in new_text(parent_run, run):
            for known in given:
                text = text.replace(known, "\n")
            if (found := letter_preference(text)) is not None:
                return f"text that reaches the model prefers an option instead of evidence: {found!r}"
        return None


_SHORT: Final = 20


def _refused(leaks: Sequence[Finding]) -> str | None:
    leak = next((leak for leak in leaks if leak.severity == "refused"), None)
    return None if leak is None else f"leak: {leak.words()}"


def _notices(checked: Sequence[str], leaks: Sequence[Finding]) -> tuple[str, ...]:
    return (*checked, *(leak.words() for leak in leaks))
