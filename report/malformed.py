"""Why submitted first answers could not be read: counts by the grader's reason and by family (REP-05).

For people: the counts include Val and Test, and nothing of this room reaches a proposal. The reasons are
those of docs/grading.md; what varies in one (a number, a letter) is folded, so that equal mistakes are
counted together. Must not know how anything is drawn.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_FOLDED: Final = (
    (re.compile(r"tags = (?:[2-9]|\d\d+)"), "tags = 2 or more"),
    (re.compile(r"unpaired tags: .*", re.DOTALL), "unpaired tags"),
    (re.compile(r"no option .*", re.DOTALL), "no such option"),
)


@dataclass(frozen=True, slots=True)
class Malformed:
    """One reason of one measurement."""

    reason: str
    families: tuple[tuple[str, int], ...]
    """How often in each family, most frequent first; families without any are left out."""

    @property
    def count(self) -> int:
        return sum(count for _, count in self.families)


def malformed(outcomes: Sequence[Mapping[str, Any]]) -> tuple[Malformed, ...]:
    """The reasons of the submitted answers without a valid format, most frequent first."""
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        if outcome.get("submitted", True) and not outcome.get("format_valid"):
            reason = folded(str(outcome.get("answer_reason") or ""))
            counts.setdefault(reason, Counter())[str(outcome.get("family", ""))] += 1
    found = [Malformed(reason, _sorted(families)) for reason, families in counts.items()]
    return tuple(sorted(found, key=lambda item: (-item.count, item.reason)))


def folded(reason: str) -> str:
    """The reason without what varies between equal mistakes."""
    for pattern, name in _FOLDED:
        if pattern.fullmatch(reason):
            return name
    return reason or "not recorded"


def _sorted(families: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(families.items(), key=lambda item: (-item[1], item[0])))
