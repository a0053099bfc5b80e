"""Grading: a submitted text against the private reference of its task (DATA-04).

The only importer of `verifier/references.py`. A verdict carries a short reason and never the reference.
"""

import math
from typing import Final

from verifier.answers import ParsedAnswer, parse
from verifier.references import Reference, ReferenceError, load_references
from verifier.release import Release, ReleaseError
from verifier.task import AnswerFormat, Verdict

_SHOWN: Final = 200


class Grader:
    """Grades texts for one release. Loading it is the only way to read the references."""

    def __init__(self, release: Release) -> None:
        """Raises ReleaseError when references and tasks do not match."""
        self._tasks = {task.id: task for task in release.tasks}
        try:
            self._references = load_references(release.references_path, self._tasks)
        except (OSError, UnicodeDecodeError, ReferenceError) as error:
            raise ReleaseError(f"release {release.name}: {error}") from None
        self.identity = release.verifier_identity()
        """Digest of the grading code's version and the reference file."""

    def grade(self, task_id: str, text: str) -> Verdict:
        """Judge one text. Never raises on any text; an unknown task is a caller's bug (KeyError)."""
        task, reference = self._tasks[task_id], self._references[task_id]
        stated = parse(task.answer_format, text, task.options)
        if stated.answer is None:
            return Verdict(format_valid=False, correct=False, answer=None, reason=stated.reason)
        correct, reason = _compare(task.answer_format, stated, reference, task.options)
        return Verdict(format_valid=True, correct=correct, answer=stated.answer[:_SHOWN], reason=reason)


def _compare(
    format: AnswerFormat, stated: ParsedAnswer, reference: Reference, options: tuple[str, ...]
) -> tuple[bool, str]:
    right = parse(format, f"<answer>{reference.answer}</answer>", options).answer
    if format is AnswerFormat.NUMBER:
        return _compare_numbers(stated, float(right or "nan"), reference)
    if stated.answer == right:
        return True, "right"
    if format is AnswerFormat.RSID and stated.answer and stated.answer.lower() == right:
        return False, "an rsID is written in lower case"
    if format is AnswerFormat.SYMBOL and stated.answer and " " in stated.answer:
        return False, "extra text"
    return False, "wrong"


def _compare_numbers(stated: ParsedAnswer, right: float, reference: Reference) -> tuple[bool, str]:
    if stated.unit and stated.unit.casefold() != "".join(reference.unit.split()).casefold():
        return False, "extra text"
    allowed = max(reference.absolute, reference.relative * abs(right))
    near = math.isclose(float(stated.answer or "nan"), right, rel_tol=0.0, abs_tol=allowed)
    return near, "right" if near else "outside the tolerance"


def verify_release(release: Release) -> Release:
    """Check the private half as well: every task has exactly one readable reference."""
    Grader(release)
    return release
