"""Where the auxiliary's word was not used, read off finished interactions (FB-04, FB-06). For reports."""

from collections.abc import Iterable

from harness_lab.evidence import Interaction
from harness_lab.exchange import Fallback


def fallbacks_of(interactions: Iterable[Interaction]) -> tuple[Fallback, ...]:
    """Replies that the host said in the auxiliary's place, and readings that were dropped, with reasons."""
    found: list[Fallback] = []
    for item in interactions:
        found += [
            Fallback(role="simulator", subject=item.task.id, problem=reply.problem, instead=reply.text)
            for reply in item.given
            if reply.chosen_by == "fallback"
        ]
        found += [
            Fallback(role="interpreter", subject=item.task.id, problem=problem, instead="no annotation")
            for problem in item.dropped_annotations
        ]
    return tuple(found)
