"""The release audit: trivial baselines, balance, overlap, duplicates, answerability (DATA-05).

Must not know references: answers come in as plain pairs from grading code (`verifier/audit_release.py`), and
only counts go out.
"""

from verifier.audit.model import AUDIT_FILE, AUDIT_VERSION, Audit, Flag
from verifier.audit.run import audit

__all__ = ["AUDIT_FILE", "AUDIT_VERSION", "Audit", "Flag", "audit"]
