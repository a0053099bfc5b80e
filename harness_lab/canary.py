"""The mark beside each private reference of a release: seen on the wire, a barrier is broken (EVID-02).

No process of a run reads a reference, so none knows a canary; its form is enough. Must not know references.
"""

import re
from collections.abc import Iterable
from typing import Final

MARK: Final = re.compile(r"rinr-canary-[0-9a-f]{16}")
"""As `verifier/freeze.py` makes them; a test freezes a release and compares."""


class CanaryAlarm(Exception):
    """Something private was about to leave for the auxiliary: nothing was sent, and the run stops."""


def require_clean(texts: Iterable[str], whom: str) -> None:
    """Raises CanaryAlarm when one of the texts holds a canary; `whom` would have been given it."""
    if any(MARK.search(text) for text in texts):
        raise CanaryAlarm(f"a private reference's canary was about to be sent to the {whom}; the run stops")
