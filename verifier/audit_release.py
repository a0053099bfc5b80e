"""The audit of a release folder: pairs its tasks with their references, and lets only the audit out.

Reads references, so it belongs to the grading side. Nothing is held in memory but what the audit keeps.
"""

from pathlib import Path

from pydantic import ValidationError

from verifier.audit.model import AUDIT_FILE, AUDIT_VERSION, Audit
from verifier.audit.run import audit_pairs
from verifier.layout import Header, ReleaseError, describe, read_header
from verifier.references import ReferenceError
from verifier.verification import paired


def audit_folder(root: Path, header: Header) -> Audit:
    """Audit the release in a folder, whose files are not verified here. Raises ReleaseError."""
    lake = root / "lake"
    try:
        pairs = ((task, reference.answer) for task, reference in paired(root, header))
        return audit_pairs(pairs, lake if lake.is_dir() else None)
    except (OSError, ReferenceError) as error:
        raise ReleaseError(f"release {header.name}: {error}") from None


def audit_of(root: Path) -> Audit:
    """The audit that was frozen with a release; made anew for a release without one, or with an older one."""
    header = read_header(root)
    if AUDIT_FILE in header.payload:
        try:
            stored = Audit.model_validate_json((root / AUDIT_FILE).read_bytes())
        except OSError as error:
            raise ReleaseError(f"{root}: {AUDIT_FILE}: {error.strerror}") from None
        except ValidationError as error:
            raise ReleaseError(f"{root}: {AUDIT_FILE}: {describe(error)}") from None
        if stored.version == AUDIT_VERSION:
            return stored
    return audit_folder(root, header)
