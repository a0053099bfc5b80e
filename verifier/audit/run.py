"""One pass over the tasks of a release, and what the parts of the audit make of it.

Owns the order of the parts and the flags. Must not know files of a release other than the lake's.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from verifier.answers import LETTERS
from verifier.audit.answerability import Answers
from verifier.audit.balance import balance
from verifier.audit.baselines import Baselines
from verifier.audit.flags import flags
from verifier.audit.gather import Gatherer, question_of
from verifier.audit.hashing import LONGEST_TEXT
from verifier.audit.model import Audit
from verifier.audit.overlap import duplicates, overlap
from verifier.layout import ReleaseError
from verifier.task import Task


def audit(tasks: Iterable[Task], answers: Iterable[tuple[str, str]], lake: Path | None = None) -> Audit:
    """Audit a release; equal input gives an equal audit.

    `answers` are (task id, answer as a solver would write it) in the order of `tasks`, handed over by grading
    code; a task may have none. Both are read once and never held. `lake` is the folder of lake files. Raises
    ReleaseError when the answers are not in the order of the tasks.
    """
    return audit_pairs(_joined(tasks, answers), lake)


def audit_pairs(pairs: Iterable[tuple[Task, str]], lake: Path | None = None) -> Audit:
    """`audit` of tasks that come with their answers; an empty one is none."""
    gatherer, baselines, held = Gatherer(), Baselines(), Answers()
    for task, answer in pairs:
        question = question_of(task)
        right = LETTERS.find(answer) if task.options and len(answer) == 1 else -1
        position = right if right >= 0 else None
        gatherer.add(task, question)
        baselines.add(task.split, task.options, position)
        if lake is not None and answer:
            held.add(task, question, position, answer)
    gathered = gatherer.finish()
    answerability, held_limits = held.finish(lake) if lake is not None else (None, ())
    limits = list(held_limits)
    if gathered.cut:
        limits.append(f"{gathered.cut} questions were read to their first {LONGEST_TEXT} characters")
    if not len(gathered.ids):
        raise ReleaseError("a release without tasks cannot be audited")
    spread, scores, equal = balance(gathered), baselines.finish(), duplicates(gathered)
    shared, overlap_limits = overlap(gathered)
    return Audit(
        tasks=len(gathered.ids),
        baselines=scores,
        balance=spread,
        overlap=shared,
        duplicates=equal,
        answerability=answerability,
        limits=(*limits, *overlap_limits),
        flags=flags(scores, spread, shared, equal, answerability),
    )


def _joined(tasks: Iterable[Task], answers: Iterable[tuple[str, str]]) -> Iterator[tuple[Task, str]]:
    """Each task with its answer, or with an empty one."""
    source = iter(answers)
    waiting = next(source, None)
    for task in tasks:
        if waiting is not None and waiting[0] == task.id:
            yield task, waiting[1]
            waiting = next(source, None)
        else:
            yield task, ""
    if waiting is not None:
        raise ReleaseError(f"audit: the answer of task {waiting[0]!r} is not in the order of the tasks")
