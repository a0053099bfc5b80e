"""The verdicts of one episode: the grader's alone, or with what scripts and a judge say of the submission.

A task of several steps is checked at each submission, on the workspace as it is then, and the next step
begins while the rewards reach what it asks. Only the last one gives a verdict. Must not know models, budgets
or programs.
"""

from dataclasses import dataclass
from typing import Final

from broker.errors import SandboxLost
from broker.outside import Outside, expect_runnable, measured
from broker.record import OutsideAnswer
from broker.surroundings import step_code
from broker.tools import ExecutionSession
from broker.workspace import NotPrepared
from verifier.grade import Grader
from verifier.script import Script, reaches
from verifier.task import Task, Verdict

STEPS_UNFINISHED: Final = Verdict(
    format_valid=False, correct=False, answer=None, reason="not all steps were submitted"
)
"""Of an episode that ended between two steps: nothing was submitted for the task as a whole."""


@dataclass(frozen=True)
class NextStep:
    """The submission ended a step, and there is another one."""

    prompt: str


class Checking:
    """One episode's. Raises GraderLost (a judge's or a script's failure is one) and SandboxLost."""

    def __init__(self, grader: Grader, outside: Outside, task: Task) -> None:
        """Raises ReleaseError for a task that cannot run here."""
        expect_runnable(task)
        self._grader = grader
        self._outside = outside
        self._task = task
        self._rewards: list[dict[str, float]] = []
        """Of each step that ran."""
        self.answers: list[OutsideAnswer] = []
        """What was said outside, in order."""

    async def submit(self, text: str, tools: ExecutionSession) -> Verdict | NextStep:
        """The verdict on a submission, or the step that it opened."""
        task = self._task
        needs = await self._grader.needs_aside(task.id, text) if task.checked_by else None
        if needs is None:
            return await self._grader.grade_aside(task.id, text)
        refused = ""
        if needs.script is not None:
            refused = await self._run_step(needs.script, tools)
            if not refused and (following := await self._next_step(needs.script, tools)) is not None:
                return following
        judged, answers = ({}, []) if refused else await self._outside.ask_judge(task, text, needs)
        self.answers += answers
        found = measured(judged, needs.script, self._rewards, refused)
        return await self._grader.grade_aside(task.id, text, found)

    async def _run_step(self, script: Script, tools: ExecutionSession) -> str:
        """Run the current step's script on the workspace; why not, if the workspace is past a limit."""
        index = min(len(self._rewards), len(script.steps) - 1)  # a second submission is checked again
        workspace = await tools.workspace()
        try:
            if workspace.refused:
                return f"the working folder was refused: {workspace.refused}"
            rewards, answer = await self._outside.run_step(self._task, script, index, workspace)
        finally:
            workspace.close()
        self._rewards[index:] = [rewards]
        self.answers.append(answer)
        return ""

    async def _next_step(self, script: Script, tools: ExecutionSession) -> NextStep | None:
        """Prepare the step after the one just checked; None when there is none, or it is not reached."""
        done = len(self._rewards)
        if done == len(script.steps) or not reaches(script.steps[done - 1], self._rewards[-1]):
            return None
        surroundings = self._task.surroundings
        if surroundings is None or len(surroundings.steps) != len(script.steps):
            raise SandboxLost(f"task {self._task.id!r} has other steps than its scripts")
        following = surroundings.steps[done]
        try:
            await tools.place(step_code(self._task, following.name))
        except NotPrepared:
            # What the program left is in the way; the step counts as failed.
            self._rewards.append(dict.fromkeys(self._rewards[-1], 0.0))
            return None
        return NextStep(following.prompt)
