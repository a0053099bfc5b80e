"""The world of a null control: a release of its own, and a stub model whose abilities are known.

The tasks and their references are made here, so no reference of anybody's is read to know what is right. An
answer is a text that the real grader judges. A program is only a name and an ability: nothing is executed,
for it is selection that is under test. Must not know the rule that selects.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.evaluation import Evaluation, TaskOutcome
from broker.harness import Harness
from broker.record import StopReason
from verifier.freeze import freeze
from verifier.grade import Grader
from verifier.release import Release
from verifier.task import AnswerFormat, Split, Task

_LETTERS: Final = "ABCD"
_GROUP: Final = 3
"""Val tasks of one material group."""


@dataclass(frozen=True)
class Program:
    """A program as the control sees it: its bytes, and the share of the tasks that it knows."""

    harness: Harness
    ability: float


@dataclass(frozen=True)
class World:
    """A release, what the stub model may say to each task, and which of it verifies."""

    tasks: tuple[Task, ...]
    """Of Val, in order of id."""
    texts: dict[str, tuple[str, ...]]
    """By task id: the right answer first, then the wrong ones that the stub guesses among."""
    verifies: dict[str, tuple[bool, ...]]
    """By task id: the real grader's word on each text."""
    noise: float
    """Share of the answers that is drawn anew in each evaluation."""
    seed: int
    _knowledge: dict[str, float] = field(default_factory=dict[str, float])

    def knows(self, program: Program, task_id: str) -> bool:
        """Abler programs know what others know, and more."""
        if task_id not in self._knowledge:
            self._knowledge[task_id] = random.Random(f"{self.seed}/knows/{task_id}").random()
        return self._knowledge[task_id] < program.ability

    def chances(self, program: Program) -> list[float]:
        """Each task's chance to be judged right in one evaluation."""
        found: list[float] = []
        for task in self.tasks:
            right, *wrong = self.verifies[task.id]
            kept = 1.0 if self.knows(program, task.id) else 0.0
            knows = (1 - self.noise) * kept + self.noise * program.ability
            found.append(knows * right + (1 - knows) * sum(wrong) / len(wrong))
        return found

    def evaluate(self, program: Program, occasion: str) -> Evaluation:
        """First answers on all of Val, drawn afresh for each occasion."""
        draws = random.Random(f"{self.seed}/{occasion}")
        return Evaluation(
            harness=program.harness.digest,
            split="val",
            seed=self.seed,
            outcomes=tuple(_outcome(task, self._answer(program, task, draws)) for task in self.tasks),
        )

    def _answer(self, program: Program, task: Task, draws: random.Random) -> bool:
        knows = self.knows(program, task.id)
        if draws.random() < self.noise:
            knows = draws.random() < program.ability
        right, *wrong = self.verifies[task.id]
        return right if knows else draws.choice(wrong)


def make_world(folder: Path, *, val: int, noise: float, seed: int, shuffled: bool) -> World:
    """Freeze a release of `val` Val tasks into `folder` and ask its grader about every text of the stub.

    `shuffled` permutes the references among tasks of the same format; the stub still believes the right ones.
    """
    tasks = [
        _task(number, "train" if number < 2 else "test" if number < 4 else "val") for number in range(val + 4)
    ]
    answers = {task.id: _right(number, seed) for number, task in enumerate(tasks)}
    references = _permuted(tasks, answers, seed) if shuffled else answers
    release = freeze(
        folder,
        name="control",
        licence="CC0-1.0",
        sources=["made by the null control"],
        families={"control": ["letter", "symbol"]},
        tasks=tasks,
        references={task_id: {"answer": answer} for task_id, answer in references.items()},
    )
    return _judged(release, answers, noise=noise, seed=seed)


def _judged(release: Release, answers: dict[str, str], *, noise: float, seed: int) -> World:
    chosen = release.split("val")
    texts = {
        task.id: tuple(f"<answer>{text}</answer>" for text in _says(task, answers[task.id]))
        for task in chosen
    }
    with Grader(release) as grader:
        verifies = {
            task_id: tuple(grader.grade(task_id, text).correct for text in said)
            for task_id, said in texts.items()
        }
    return World(tasks=chosen, texts=texts, verifies=verifies, noise=noise, seed=seed)


def _task(number: int, split: Split) -> Task:
    letter = number % 3 != 2
    options = tuple(f"choice {number}-{letter}" for letter in _LETTERS) if letter else ()
    lines = [f"Control question {number}?", *(f"{_LETTERS[i]}. {text}" for i, text in enumerate(options))]
    form = AnswerFormat.LETTER if letter else AnswerFormat.SYMBOL
    return Task(
        id=f"control-{number:04d}",
        split=split,
        family="control",
        subtopic="letter" if letter else "symbol",
        material_group=f"{split}-{number // _GROUP}",
        prompt="\n".join([*lines, f"Answer with <answer>{form.value}</answer>."]),
        options=options,
        answer_format=form,
    )


def _right(number: int, seed: int) -> str:
    return random.Random(f"{seed}/right/{number}").choice(_LETTERS) if number % 3 != 2 else f"S{number}"


def _says(task: Task, right: str) -> Sequence[str]:
    if task.options:
        return [right, *(letter for letter in _LETTERS if letter != right)]
    return [right, f"{right}X"]


def _permuted(tasks: Sequence[Task], answers: dict[str, str], seed: int) -> dict[str, str]:
    """References exchanged within each split and format; every task keeps a reference that it can have."""
    draws, found = random.Random(f"{seed}/shuffle"), dict[str, str]()
    for split, form in sorted({(task.split, task.answer_format) for task in tasks}):
        ids = [task.id for task in tasks if (task.split, task.answer_format) == (split, form)]
        found |= dict(zip(ids, draws.sample([answers[task_id] for task_id in ids], len(ids)), strict=True))
    return found


def _outcome(task: Task, correct: bool) -> TaskOutcome:
    plain: dict[str, Any] = {"family": task.family, "subtopic": task.subtopic}
    return TaskOutcome(
        task_id=task.id,
        material_group=task.material_group,
        correct=correct,
        format_valid=True,
        submitted=True,
        stop_reason=StopReason.FIRST_ANSWER,
        error=None,
        model_calls=1,
        tool_calls=0,
        tool_errors=0,
        answer_reason="",
        **plain,
    )
