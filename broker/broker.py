"""Runs attempts: retries what is ours, keeps the order, holds one shared limit (SEL-03, architecture 5).

A failure of ours (`errors.OURS`) is retried with a growing pause. What then still
fails is `Lost` where the caller can mask it, and otherwise an exception, raised after the running
siblings have finished. Must not know selection, statistics or training.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from broker.attempt import Attempt, Lost, Reply, Researcher, task_seed
from broker.budgets import Budgets
from broker.episode import Episode
from broker.errors import OURS
from broker.limiter import Limiter
from broker.model import ChatTaskModel, TaskModel
from broker.outside import Outside
from broker.record import GradedEpisode
from broker.sandbox.base import SandboxFactory
from broker.services import Services
from broker.template import ChatTemplate
from catalog.digest import digest_json
from verifier.grade import Grader
from verifier.judge import Judge
from verifier.release import Release

__all__ = ["BROKER_VERSION", "Attempt", "Broker", "Lost", "Reply", "Researcher", "host_identity", "task_seed"]

BROKER_VERSION: Final = 2
"""Raise it whenever the same program, model and task could give another record."""

Result = GradedEpisode | Lost


def host_identity(
    sandboxes: SandboxFactory, budgets: Budgets, guidance: str, libraries: Sequence[str] = ()
) -> str:
    """Digest of everything of the host that shapes an episode, but model, release and program."""
    return digest_json(
        {
            "sandboxes": sandboxes.identity,
            "budgets": budgets.model_dump(mode="json"),
            "guidance": guidance,
            "libraries": list(libraries),
            "version": BROKER_VERSION,
        }
    )


@dataclass
class Broker:
    """The one way to run an episode. Share one per run: its limiter is the shared limit."""

    model: TaskModel | ChatTaskModel
    template: ChatTemplate
    sandboxes: SandboxFactory
    grader: Grader
    release: Release
    budgets: Budgets
    guidance: str
    limiter: Limiter
    retries: int = 2
    """Further tries of an attempt after a failure of ours."""
    back_off: float = 1.0
    """Seconds before the first retry; doubles with each."""
    libraries: tuple[str, ...] = field(default=())
    """Python packages of the execution environment, shown to programs in the inventory."""
    judge: Judge | None = None
    """Decides rubric criteria of a release that has such."""

    def identity(self) -> str:
        """`host_identity` of this broker."""
        return host_identity(self.sandboxes, self.budgets, self.guidance, self.libraries)

    @cached_property
    def services(self) -> Services:
        return Services(
            model=self.model,
            template=self.template,
            sandboxes=self.sandboxes,
            grader=self.grader,
            release=self.release,
            budgets=self.budgets,
            guidance=self.guidance,
            inventory=self.release.inventory(self.libraries),
            outside=Outside(self.release, self.sandboxes, self.judge),
        )

    async def run(self, attempt: Attempt, researcher: Researcher | None = None) -> GradedEpisode:
        """One graded episode. Raises one of `OURS` when all tries failed."""
        async with self.limiter.slot() as waited:
            return await self._try(attempt, researcher, waited)

    async def _try(self, attempt: Attempt, researcher: Researcher | None, waited: float) -> GradedEpisode:
        failures: list[str] = []
        while True:
            try:
                graded = await Episode(self.services, attempt, researcher).run()
            except OURS as error:
                failures.append(f"{type(error).__name__}: {error}")
                if len(failures) > self.retries:
                    raise
                await asyncio.sleep(self.back_off * 2 ** (len(failures) - 1))
            else:
                return _with_host_facts(graded, waited, failures)

    async def run_all(
        self,
        attempts: Sequence[Attempt],
        researcher: Researcher | None = None,
        progress: Callable[[GradedEpisode], None] | None = None,
        masked_ok: bool = False,
    ) -> list[Result]:
        """All attempts under the shared limit, results in the order given.

        With `masked_ok` a lost attempt is `Lost` in its place. Without, no further attempt is begun after
        the first loss, the running ones end (and reach `progress`), and the loss is raised. Cancelling
        closes every sandbox.
        """
        first_loss: Exception | None = None

        async def one(attempt: Attempt) -> Result:
            nonlocal first_loss
            async with self.limiter.slot() as waited:
                if first_loss is not None:
                    return Lost(attempt, "not begun after an earlier loss")
                try:
                    graded = await self._try(attempt, researcher, waited)
                except OURS as error:
                    if not masked_ok and first_loss is None:
                        first_loss = error
                    return Lost(attempt, f"{type(error).__name__}: {error}")
            if progress is not None:
                progress(graded)
            return graded

        results = await _gather([one(attempt) for attempt in attempts])
        if first_loss is not None:
            raise first_loss
        return results

    async def close(self) -> None:
        """Release the sandbox factory and the judge. Idempotent."""
        if self.judge is not None:
            await self.judge.close()
        await self.sandboxes.close()


async def _gather(works: list[Coroutine[Any, Any, Result]]) -> list[Result]:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        # A bug in one, or a cancellation from outside, must leave no sibling and no sandbox behind.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _with_host_facts(graded: GradedEpisode, waited: float, failures: list[str]) -> GradedEpisode:
    record = graded.record
    notes = {**record.notes, "retries": failures} if failures else record.notes
    facts = {"notes": notes, "queue_seconds": record.queue_seconds + waited}
    return graded.model_copy(update={"record": record.model_copy(update=facts)})
