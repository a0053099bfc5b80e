"""Errors of the store and the catalog, one class per boundary; each message is one line with the fix."""


class StoreError(Exception):
    """An object is missing or corrupt, or storage cannot be read or written (disk full, permissions)."""


class IdentityMismatch(Exception):
    """Something was recorded under this name with another identity. The message names each difference."""


class HandoffError(Exception):
    """A handoff step is not allowed: unknown request, stale token, or another result exists (HAND-02)."""
