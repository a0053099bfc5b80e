"""The check of a whole release folder, private half included, as a stream (DATA-02).

Reads references, so it belongs to the grading side; it gives back counts and never a reference.
"""

from collections.abc import Iterator
from pathlib import Path

from verifier.layout import REFERENCES, Header, ReleaseError, check_payload, read_header, stream_tasks
from verifier.references import Reference, ReferenceError, pair_references
from verifier.script import Script
from verifier.task import Task


def verify(root: Path) -> Header:
    """Recompute every digest and pair every task with its reference; memory does not grow with the release.

    Raises ReleaseError, one line naming the entry and the file, for anything missing, extra or changed.
    """
    header = read_header(root)
    check_payload(root, header)
    try:
        for _ in paired(root, header):
            pass
    except (OSError, ReferenceError) as error:
        raise ReleaseError(f"release {header.name}: {error}") from None
    return header


def paired(root: Path, header: Header) -> Iterator[tuple[Task, Reference]]:
    """Each task with its reference, as `pair_references`; the files of a check script are checked, too."""
    for task, reference in pair_references(root / REFERENCES, stream_tasks(root, header)):
        if reference.script is not None:
            _check_private_files(header, task.id, reference.script)
        yield task, reference


def _check_private_files(header: Header, task_id: str, script: Script) -> None:
    """A script's files are those that its reference pins, or the verifier's identity would not cover them."""
    place = f"private/files/{task_id}/"
    there = {
        name.removeprefix(place): entry.digest
        for name, entry in header.payload.items()
        if name.startswith(place)
    }
    if odd := sorted(there.items() ^ script.files.items()):
        raise ReferenceError(
            f"task {task_id!r}: its private file {odd[0][0]} is not the one that its script pins"
        )
