"""Gets what the grader needs from outside: the judge's word, and the rewards of check scripts.

Everything that was said is recorded beside the verdict, privately. Failures leave as exceptions
(`JudgeError`, `RewardError`, `SandboxLost`): nothing may be concluded then. Must not know what an answer is
worth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.record import OutsideAnswer
from broker.sandbox.base import SandboxFactory
from broker.sandbox.runtime import Runtime, build_runtime
from broker.sandbox.shell import with_shell
from broker.script_check import run_script
from broker.workspace import Workspace
from catalog.digest import digest_json
from verifier.judge import Judge, JudgeError
from verifier.outside import Measured, Needs
from verifier.release import Release, ReleaseError
from verifier.script import Script, combine
from verifier.task import Task


def verifier_identity(release: Release, judge_identity: str) -> str:
    """What all verdicts rest on: grading code, references, and the judge where the release needs one."""
    if "judge" not in release.checkers:
        return release.verifier_identity()
    return digest_json({"grader": release.verifier_identity(), "judge": judge_identity})


def runtime_for(shell: bool, packages: Path, cache: Path) -> Runtime:
    """The execution environment of a run, with a shell for releases whose tasks scripts check."""
    runtime = build_runtime(packages=packages, cache=cache)
    return with_shell(runtime, cache) if shell else runtime


def expect_checkers(release: Release, *, judge: bool) -> None:
    """Raises ReleaseError, one line, when a run on this release could not be graded or could not run."""
    if "judge" in release.checkers and not judge:
        raise ReleaseError(
            f"release {release.name} has criteria that a judge model decides: give judge=chat with "
            "judge.base_url and judge.model"
        )
    for task in release.tasks:
        expect_runnable(task)


def expect_runnable(task: Task) -> None:
    """Raises ReleaseError, one line, for a task that requires what no sandbox here gives."""
    if task.surroundings is not None and task.surroundings.requires:
        raise ReleaseError(
            f"task {task.id!r} cannot be run here, for it requires {', '.join(task.surroundings.requires)}: "
            "import without the task, or with --assume for what it does not need in fact"
        )


@dataclass(frozen=True)
class Outside:
    """Judge, sandboxes and private files of one release."""

    release: Release
    sandboxes: SandboxFactory
    judge: Judge | None = None

    async def ask_judge(
        self, task: Task, text: str, needs: Needs
    ) -> tuple[dict[str, float], list[OutsideAnswer]]:
        """v by criterion, and the raw answers. Raises JudgeError."""
        if not needs.judge:
            return {}, []
        if self.judge is None:
            raise JudgeError("a rubric needs a judge, and none is configured: give judge=chat")
        judged = await self.judge.judge(task.prompt, text, needs.judge)
        records = [
            OutsideAnswer(
                by="judge",
                criterion=item.criterion,
                satisfaction={item.criterion: item.judgement.satisfaction},
                why=item.judgement.why,
                raw=item.raw,
                identity=self.judge.identity,
            )
            for item in judged
        ]
        return {item.criterion: item.judgement.satisfaction for item in judged}, records

    async def run_step(
        self, task: Task, script: Script, index: int, workspace: Workspace
    ) -> tuple[dict[str, float], OutsideAnswer]:
        """The rewards of one step's script. Raises RewardError and SandboxLost."""
        step = script.steps[index]
        result = await run_script(
            self.sandboxes,
            workspace,
            step,
            private=self.private_files(task),
            lake=self.release.lake,
            memory_bytes=script.memory_bytes,
        )
        record = OutsideAnswer(
            by="script",
            criterion=step.name,
            satisfaction=result.rewards,
            why=f"exit status {result.status}",
            raw=(result.log,),
            identity=digest_json(dict(script.files)),
        )
        return result.rewards, record

    def private_files(self, task: Task) -> Path:
        return self.release.private_files(task.id)


def measured(
    judged: Mapping[str, float], script: Script | None, steps: list[dict[str, float]], refused: str = ""
) -> Measured:
    """What the grader is told."""
    rewards: dict[str, Any] | None = combine(script.strategy, steps) if script is not None and steps else None
    return Measured(judged=judged, rewards=rewards, refused=refused)
