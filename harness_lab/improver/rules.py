"""The improver `rules`: evidence-triggered rewrites of the program, general by construction.

A rule reads public evidence (what went wrong, on which tasks) and adds traits to the parent's. It knows
nothing of any release: what the assembled programs look up comes from the inventory and the question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.harness import Harness
from harness_lab.evidence import EvidenceBundle, EvidenceItem, Interaction
from harness_lab.improver.assemble import LOOP_ONLY, Trait, assemble, traits_of
from harness_lab.improver.base import Proposal, ProposalContext, Skip, known_programs
from harness_lab.improver.symptoms import (
    code_too_slow,
    context_full,
    cut_off,
    misread,
    names_guessed,
    nothing_found,
    nothing_printed,
    out_of_calls,
    output_cut,
    several_answers,
    tool_failed,
    unreadable,
    unsupported,
)

_MOST_CITED: Final = 4
_NONE: Final = frozenset[Trait]()


Symptom = Callable[[Interaction, EvidenceItem], bool]


@dataclass(frozen=True)
class Rule:
    """One hypothesis: what it sees, what it adds, why that may help."""

    name: str
    adds: frozenset[Trait]
    needs: frozenset[Trait]
    """Traits without which the rule makes no sense."""
    symptom: Symptom
    hypothesis: str
    rationale: str

    @property
    def of_the_loop(self) -> bool:
        """It changes nothing in a program that lets the model make no tool calls."""
        return self.adds <= LOOP_ONLY


RULES: Final = (
    Rule(
        name="show the form",
        adds=frozenset({Trait.EXAMPLES, Trait.DIRECT}),
        needs=_NONE,
        symptom=unreadable,
        hypothesis="Worked examples of the asked form, in one short answer-only turn, give readable answers.",
        rationale="Answers could not be read, or none was given.",
    ),
    Rule(
        name="look up first",
        adds=frozenset({Trait.LOOK_UP}),
        needs=_NONE,
        symptom=unsupported,
        hypothesis="Looking the question's names up in all tables first gives the model the answer's value.",
        rationale="Answers were given without anything having been looked up.",
    ),
    Rule(
        name="answer in one turn",
        adds=frozenset({Trait.DIRECT}),
        needs=_NONE,
        symptom=cut_off,
        hypothesis="A short instruction and one answer-only turn keep the model within its budgets.",
        rationale="Episodes ended at a limit before an answer.",
    ),
    Rule(
        name="narrow the rows",
        adds=frozenset({Trait.FOCUS}),
        needs=frozenset({Trait.LOOK_UP}),
        symptom=misread,
        hypothesis="Rows cut down to what the question names, in the order it asks for, are read correctly.",
        rationale="Answers were doubted although the rows had been found.",
    ),
    Rule(
        name="show more examples",
        adds=frozenset({Trait.MORE_EXAMPLES}),
        needs=frozenset({Trait.EXAMPLES}),
        symptom=misread,
        hypothesis="A third worked example makes the reading of rows steadier.",
        rationale="Answers were doubted although the rows had been found.",
    ),
    Rule(
        name="ask again for the form",
        adds=frozenset({Trait.REPAIR}),
        needs=frozenset({Trait.EXAMPLES}),
        symptom=unreadable,
        hypothesis="Asking once more for the form rescues replies without a readable answer.",
        rationale="Some answers still could not be read.",
    ),
    Rule(
        name="inspect and retry",
        adds=frozenset({Trait.INSPECT}),
        needs=_NONE,
        symptom=tool_failed,
        hypothesis="Showing the tables' columns after a failed call lets the model repair it.",
        rationale="Tool calls failed.",
    ),
    Rule(
        name="pass the budget on",
        adds=frozenset({Trait.NOTICE}),
        needs=_NONE,
        symptom=out_of_calls,
        hypothesis="Told that its calls run out, the model answers with the last one instead of going on.",
        rationale="Episodes ended in the middle of tool use, without an answer.",
    ),
    Rule(
        name="show the columns first",
        adds=frozenset({Trait.TABLES}),
        needs=_NONE,
        symptom=names_guessed,
        hypothesis="With tables and columns in the first message, code names what is there.",
        rationale="Code named files or columns that do not exist.",
    ),
    Rule(
        name="say that nothing was printed",
        adds=frozenset({Trait.PRINT}),
        needs=_NONE,
        symptom=nothing_printed,
        hypothesis="Told that its code printed nothing, the model prints what it looks for.",
        rationale="Code ran and showed nothing.",
    ),
    Rule(
        name="keep the newest turns",
        adds=frozenset({Trait.RECENT}),
        needs=_NONE,
        symptom=context_full,
        hypothesis="Without its older turns a long conversation stays within the context.",
        rationale="Conversations outgrew the context.",
    ),
    Rule(
        name="say how long code may run",
        adds=frozenset({Trait.QUICK}),
        needs=_NONE,
        symptom=code_too_slow,
        hypothesis="Told its time limit, the model writes code that reads less.",
        rationale="Code was stopped at its time limit.",
    ),
    Rule(
        name="submit the last answer",
        adds=frozenset({Trait.LAST_PAIR}),
        needs=_NONE,
        symptom=several_answers,
        hypothesis="Of several answers in one text the last is what the model settled on.",
        rationale="Texts gave more than one answer.",
    ),
    Rule(
        name="look for parts of cells",
        adds=frozenset({Trait.WIDE}),
        needs=frozenset({Trait.LOOK_UP}),
        symptom=nothing_found,
        hypothesis="Where no cell equals a name, cells that contain it are about it.",
        rationale="The look-up found no row.",
    ),
    Rule(
        name="say that output was cut",
        adds=frozenset({Trait.PAGES}),
        needs=_NONE,
        symptom=output_cut,
        hypothesis="Told that its output was cut, the model prints only what matters.",
        rationale="Code printed more than can be shown.",
    ),
)
"""Order matters: of one step's hypotheses the first ones are proposed. A new rule goes to the end."""


class RuleImprover:
    """Deterministic; needs no second model."""

    identity = "rules/2"

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
        if cited and rule.needs <= had and not rule.adds <= had and _has_effect(rule, had):
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
        if not all(_has_effect(rule, traits) for rule, _ in group):
            continue
        digest = Harness(code=assemble(traits)).digest
        if digest == parent.digest or digest in known or any(traits == other for _, other, _ in found):
            continue
        found.append((tuple(rule for rule, _ in group), traits, _merge([cited for _, cited in group])))
    return found


def _has_effect(rule: Rule, traits: frozenset[Trait]) -> bool:
    return not (rule.of_the_loop and Trait.DIRECT in traits)


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
