"""The check of a whole release folder, private half included, as a stream (DATA-02).

Reads references, so it belongs to the grading side; it gives back counts and never a reference.
"""

from pathlib import Path

from verifier.layout import REFERENCES, Header, ReleaseError, check_payload, read_header, stream_tasks
from verifier.references import ReferenceError, pair_references


def verify(root: Path) -> Header:
    """Recompute every digest and pair every task with its reference; memory does not grow with the release.

    Raises ReleaseError, one line naming the entry and the file, for anything missing, extra or changed.
    """
    header = read_header(root)
    check_payload(root, header)
    try:
        for _ in pair_references(root / REFERENCES, stream_tasks(root, header)):
            pass
    except (OSError, ReferenceError) as error:
        raise ReleaseError(f"release {header.name}: {error}") from None
    return header
