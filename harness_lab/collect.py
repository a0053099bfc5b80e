"""Collect one step's Train interactions with the current program (FB-01, SCHED-05).

What goes on to proposals is `Interaction`; the graded episodes are for reports and stay apart.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.attempt import Attempt, Lost, task_seed
from broker.broker import Broker
from broker.errors import OURS
from broker.harness import Harness
from broker.record import GradedEpisode
from harness_lab.annotation import Annotation
from harness_lab.auxiliary import Auxiliary
from harness_lab.evidence import Interaction
from harness_lab.feedback import SimulatedResearcher
from harness_lab.interpret import interpret
from harness_lab.words import HOLDS_HELD_OUT, HeldOut, texts_in
from verifier.task import Task

TEMPERATURE: Final = 1.0


@dataclass(frozen=True)
class Collection:
    """One step's interactions, in the order of the tasks. `graded` is private, `interactions` is public."""

    interactions: tuple[Interaction, ...]
    graded: tuple[GradedEpisode, ...]
    lost: tuple[Lost, ...]
    """Attempts that gave no episode by a fault of ours."""


def first_answers(graded: Sequence[GradedEpisode]) -> str:
    """One line on first answers, and apart from them those that were right only after feedback (FB-02)."""
    right = sum(episode.verdict.correct for episode in graded)
    valid = sum(episode.verdict.format_valid for episode in graded)
    return (
        f"first answers: {right} of {len(graded)} right, {len(graded) - valid} without a valid answer; "
        f"{sum(episode.repaired for episode in graded)} more repaired after feedback"
    )


async def collect(
    broker: Broker,
    harness: Harness,
    tasks: Sequence[Task],
    auxiliary: Auxiliary,
    seed: int,
    progress: Callable[[GradedEpisode], None] | None = None,
) -> Collection:
    """Run an interaction on each task at temperature 1. A task that comes twice is attempted twice.

    A lost attempt is counted; only when every attempt is lost is the loss raised.
    """
    if any(task.split != "train" for task in tasks):
        raise ValueError("interactions run on Train tasks only")
    before = [[other.id for other in tasks[:place]].count(task.id) for place, task in enumerate(tasks)]
    attempts = [
        Attempt(
            task=task,
            harness=harness,
            mode="interaction",
            temperature=TEMPERATURE,
            seed=task_seed(seed, task.id, repetition),
            repetition=repetition,
        )
        for task, repetition in zip(tasks, before, strict=True)
    ]

    held_out = HeldOut.of(broker.release)

    async def one(attempt: Attempt) -> tuple[Interaction, GradedEpisode] | Exception:
        researcher = SimulatedResearcher(auxiliary)
        try:
            graded = await broker.run(attempt, researcher)
        except OURS as error:
            return error
        if progress is not None:
            progress(graded)
        return await _interpreted(attempt.task, graded, researcher, auxiliary, held_out), graded

    works = [asyncio.ensure_future(one(attempt)) for attempt in attempts]
    try:
        results = await asyncio.gather(*works)
    finally:
        # An alarm or a cancellation leaves no sibling running.
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
    errors = [result for result in results if isinstance(result, Exception)]
    if errors and len(errors) == len(results):
        raise errors[0]
    done = [result for result in results if isinstance(result, tuple)]
    lost = [
        Lost(attempt, f"{type(result).__name__}: {result}")
        for attempt, result in zip(attempts, results, strict=True)
        if isinstance(result, Exception)
    ]
    return Collection(tuple(item for item, _ in done), tuple(graded for _, graded in done), tuple(lost))


async def _interpreted(
    task: Task,
    graded: GradedEpisode,
    researcher: SimulatedResearcher,
    auxiliary: Auxiliary,
    held_out: HeldOut,
) -> Interaction:
    record = graded.record
    kept: list[tuple[int, Annotation]] = []
    dropped: list[str] = []
    for place, given in enumerate(researcher.given):
        annotation, problem = await interpret(auxiliary, task.prompt, record, given)
        said = problem if annotation is None else f"{annotation.evidence}\n{annotation.hint}"
        # What the record holds it may repeat: tool output shows the lake.
        shown = replace(held_out, public="\n".join(texts_in(record.model_dump())))
        if await asyncio.to_thread(shown.stands_in, said):
            annotation, problem = None, f"the annotation {HOLDS_HELD_OUT}"
        if annotation is None:
            dropped.append(problem)
        else:
            kept.append((place, annotation))
    return Interaction(
        task=task,
        record=record,
        given=tuple(researcher.given),
        annotations=tuple(kept),
        dropped_annotations=tuple(dropped),
    )
