"""One pass over the tasks of a release, and what the parts of the audit make of it.

Owns the order of the parts and the flags. Must not know files of a release other than the lake's.
"""

from collections.abc import Iterable
from pathlib import Path

from verifier.audit.model import Audit
from verifier.task import Task


def audit(tasks: Iterable[Task], answers: Iterable[tuple[str, str]], lake: Path | None = None) -> Audit:
    """Audit a release; equal input gives an equal audit.

    `answers` are (task id, answer as a solver would write it) in the order of `tasks`, handed over by grading
    code; a task may have none. Both are read once and never held. `lake` is the folder of lake files. Raises
    ReleaseError when the answers are not in the order of the tasks.
    """
    raise NotImplementedError
