"""What the episodes of a run stand on, and what each program is handed from it. Runs nothing itself."""

from dataclasses import dataclass, field
from typing import Any

from broker.budgets import Budgets
from broker.guidance import program_task, public_texts
from broker.model import ChatTaskModel, TaskModel
from broker.outside import Outside
from broker.record import Given
from broker.sandbox.base import SandboxFactory
from broker.template import ChatTemplate
from catalog.digest import digest_json
from verifier.grade import Grader
from verifier.inventory import Inventory
from verifier.release import Release
from verifier.task import Task


@dataclass(frozen=True)
class Handed:
    """What a program is handed at the start of an episode."""

    task: dict[str, Any]
    given: Given
    public: tuple[str, ...]
    """The texts in it that are no tool text when a tool repeats them."""


@dataclass(frozen=True)
class Services:
    """What an episode stands on; shared by all episodes of a run."""

    model: TaskModel | ChatTaskModel
    template: ChatTemplate
    sandboxes: SandboxFactory
    grader: Grader
    release: Release
    budgets: Budgets
    guidance: str
    inventory: Inventory
    outside: Outside
    _handed: dict[tuple[str, int], Handed] = field(default_factory=dict[tuple[str, int], Handed])

    def handed(self, task: Task, user_turns: int) -> Handed:
        """The same for every episode on a task, so it is made once."""
        key = (task.id, user_turns)
        if key not in self._handed:
            self._handed[key] = self._hand(task, user_turns)
        return self._handed[key]

    def _hand(self, task: Task, user_turns: int) -> Handed:
        plain = program_task(task, self.budgets, self.guidance, self.inventory, user_turns=user_turns)
        given = Given(
            release=self.release.digest,
            budgets=self.budgets,
            guidance=self.guidance,
            libraries=tuple(self.inventory.libraries),
            user_turns=user_turns,
            task=digest_json(plain),
        )
        return Handed(task=plain, given=given, public=public_texts(task, self.inventory))
