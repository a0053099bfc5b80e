"""One line of `rinr doctor`."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "failed", "note"]


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    name: str
    state: State
    detail: str
    """What was seen, and for `missing` the remedy. `failed` is a proof that did not hold."""
