"""The improver `rules`: evidence-triggered rewrites of the program, general by construction.

A rule reads public evidence (what went wrong, on which tasks) and adds traits to the parent's. It knows
nothing of any release: what the assembled programs look up comes from the inventory and the question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.harness import Harness
from broker.record import StopReason
from harness_lab.evidence import EvidenceBundle, EvidenceItem, Interaction
from harness_lab.improver.assemble import Trait, assemble, traits_of
from harness_lab.improver.base import Proposal, ProposalContext, Skip, known_programs
from harness_lab.replies import ReplyCase, case_of

_MOST_CITED: Final = 4
_NONE: Final = frozenset[Trait]()


@dataclass(frozen=True)
class Rule:
    """One hypothesis: what it sees, what it adds, why that may help."""

    name: str
    adds: frozenset[Trait]
    needs: frozenset[Trait]
    """Traits without which the rule makes no sense."""
    symptom: Callable[[Interaction, EvidenceItem], bool]
    hypothesis: str
    rationale: str


def _unreadable(interaction: Interaction, item: EvidenceItem) -> bool:
    """No readable answer: a wrong form, or an end without one."""
    if item.kind == "correction":
        return case_of(item.quote) is ReplyCase.INVALID_FORMAT
    return item.kind == "unfinished"


def _unsupported(interaction: Interaction, item: EvidenceItem) -> bool:
    """The answer came before any look-up that gave something."""
    return item.kind in ("correction", "unfinished") and not any(
        call.stdout.strip() and not call.error for call in interaction.record.tool_calls
    )


def _cut_off(interaction: Interaction, item: EvidenceItem) -> bool:
    return item.kind == "unfinished" and interaction.record.stop_reason in (
        StopReason.OUTPUT_TRUNCATED,
        StopReason.MODEL_CALL_BUDGET,
        StopReason.CONTEXT_BUDGET,
    )


def _tool_failed(interaction: Interaction, item: EvidenceItem) -> bool:
    return item.kind == "tool_error"


def _misread(interaction: Interaction, item: EvidenceItem) -> bool:
    """A readable answer was doubted although a look-up had given rows."""
    return (
        item.kind == "correction"
        and case_of(item.quote) is ReplyCase.RECONSIDER
        and any(call.stdout.strip() for call in interaction.record.tool_calls)
    )


RULES: Final = (
    Rule(
        name="show the form",
        adds=frozenset({Trait.EXAMPLES, Trait.DIRECT}),
        needs=_NONE,
        symptom=_unreadable,
        hypothesis="Worked examples of the asked form, in one short answer-only turn, give readable answers.",
        rationale="Answers could not be read, or none was given.",
    ),
    Rule(
        name="look up first",
        adds=frozenset({Trait.LOOK_UP}),
        needs=_NONE,
        symptom=_unsupported,
        hypothesis="Looking the question's names up in all tables first gives the model the answer's value.",
        rationale="Answers were given without anything having been looked up.",
    ),
    Rule(
        name="answer in one turn",
        adds=frozenset({Trait.DIRECT}),
        needs=_NONE,
        symptom=_cut_off,
        hypothesis="A short instruction and one answer-only turn keep the model within its budgets.",
        rationale="Episodes ended at a limit before an answer.",
    ),
    Rule(
        name="narrow the rows",
        adds=frozenset({Trait.FOCUS}),
        needs=frozenset({Trait.LOOK_UP}),
        symptom=_misread,
        hypothesis="Rows cut down to what the question names, in the order it asks for, are read correctly.",
        rationale="Answers were doubted although the rows had been found.",
    ),
    Rule(
        name="show more examples",
        adds=frozenset({Trait.MORE_EXAMPLES}),
        needs=frozenset({Trait.EXAMPLES}),
        symptom=_misread,
        hypothesis="A third worked example makes the reading of rows steadier.",
        rationale="Answers were doubted although the rows had been found.",
    ),
    Rule(
        name="ask again for the form",
        adds=frozenset({Trait.REPAIR}),
        needs=frozenset({Trait.EXAMPLES}),
        symptom=_unreadable,
        hypothesis="Asking once more for the form rescues replies without a readable answer.",
        rationale="Some answers still could not be read.",
    ),
    Rule(
        name="inspect and retry",
        adds=frozenset({Trait.INSPECT}),
        needs=_NONE,
        symptom=_tool_failed,
        hypothesis="Showing the tables' columns after a failed call lets the model repair it.",
        rationale="Tool calls failed.",
    ),
)


class RuleImprover:
    """Deterministic; needs no second model."""

    identity = "rules/1"

    async def propose(
        self, parent: Harness, context: ProposalContext, index: int, count: int
    ) -> Proposal | Skip:
        """The `index`-th of the step's different hypotheses, or why there is none."""
        options = hypotheses(parent, context)[:count]
        if index >= len(options):
            return Skip(reason=f"the evidence supports {len(options)} different rewrites, not {index + 1}")
        rules, traits, cited = options[index]
        names = ", ".join(rule.name for rule in rules)
        return Proposal(
            harness=Harness(code=assemble(traits)),
            hypothesis=" ".join(rule.hypothesis for rule in rules),
            rationale=f"{' '.join(rule.rationale for rule in rules)} (rules: {names})",
            evidence_ids=cited,
        )

    async def close(self) -> None:
        return None


Hypothesis = tuple[tuple[Rule, ...], frozenset[Trait], tuple[str, ...]]


def hypotheses(parent: Harness, context: ProposalContext) -> list[Hypothesis]:
    """Different rewrites of the parent, most promising first.

    Each fired rule alone, then pairs; two rules whose symptoms are both common come together before all
    others, for neither alone could help. Rules that answer the same symptom are alternatives and never
    combined. A program that no rule assembled has no traits to keep, so a rewrite replaces it as a whole.
    """
    had = traits_of(parent.code) or _NONE
    fired: list[tuple[Rule, tuple[str, ...]]] = []
    for rule in RULES:
        cited = cite(context.evidence, rule)
        if cited and rule.needs <= had and not rule.adds <= had:
            fired.append((rule, cited))
    pairs = [
        (one, other)
        for place, one in enumerate(fired)
        for other in fired[place + 1 :]
        if one[0].symptom is not other[0].symptom and not other[0].adds <= one[0].adds
    ]
    urgent = [pair for pair in pairs if all(_common(context.evidence, rule) for rule, _ in pair)][:1]
    combined = [*urgent, *((one,) for one in fired), *pairs]
    known = known_programs(context.history, parent, context.cycle)
    found: list[Hypothesis] = []
    for group in combined:
        traits = had.union(*(rule.adds for rule, _ in group))
        digest = Harness(code=assemble(traits)).digest
        if digest == parent.digest or digest in known or any(traits == other for _, other, _ in found):
            continue
        found.append((tuple(rule for rule, _ in group), traits, _merge([cited for _, cited in group])))
    return found


def cite(evidence: EvidenceBundle, rule: Rule) -> tuple[str, ...]:
    """Two to four items that show the rule's symptom, one a task first; empty unless two tasks show it."""
    seen: dict[str, list[str]] = {}
    for number, interaction in enumerate(evidence.interactions):
        for item in evidence.items_of(number):
            if rule.symptom(interaction, item):
                seen.setdefault(item.task_id, []).append(item.id)
    if len(seen) < 2:
        return ()
    return tuple(ids[0] for ids in seen.values())[:_MOST_CITED]


def _common(evidence: EvidenceBundle, rule: Rule) -> bool:
    """Whether more than two thirds of the interactions show the rule's symptom."""
    showing = sum(
        any(rule.symptom(interaction, item) for item in evidence.items_of(number))
        for number, interaction in enumerate(evidence.interactions)
    )
    return 3 * showing > 2 * len(evidence.interactions)


def _merge(cited: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """At most four ids, taken in turn from each rule's citations."""
    longest = max(len(ids) for ids in cited)
    merged = dict.fromkeys(ids[place] for place in range(longest) for ids in cited if place < len(ids))
    return tuple(merged)[:_MOST_CITED]
