"""Grading: a submitted text against the private reference of its task (DATA-04).

A verdict carries a short reason and never the reference.
"""

from verifier.comparison import grade_text
from verifier.references import ReferenceError, load_references
from verifier.release import Release, ReleaseError
from verifier.task import Verdict


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
        return Verdict(**grade_text(task.answer_format, task.options, reference, text)._asdict())


def verify_release(release: Release) -> Release:
    """Check the private half as well: every task has exactly one readable reference."""
    Grader(release)
    return release
