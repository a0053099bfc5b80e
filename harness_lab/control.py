"""Null controls: many steps in which nothing is better, through the rule that selects (SEL-05..07).

`identical`: three programs of other bytes and the parent's behaviour. `shuffled`: three programs that know
more, graded against references that were permuted among tasks of the same format. In both every adoption is
spurious, and how many there should be is known exactly. The steps are chained: an adopted program is the next
parent and is evaluated afresh. A run would drop `identical` candidates at the dry run; the control puts them
on Val on purpose. Evaluations come from a stub in this process, without sandboxes: what is tested is
selection, and a program that is never executed needs none.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from broker.harness import Harness
from harness_lab.control_world import Program, World, make_world
from harness_lab.null import Adoption, fresh_null, score_distribution
from harness_lab.seed import seed_harness
from harness_lab.selection import CandidateResult, Decision, duplicate_of, select

Kind = Literal["identical", "shuffled"]
Rule = Callable[..., Decision]

_DRAWS: Final = 20
"""Of the bootstrap, whose intervals a control does not read."""
_ABLER: Final = 0.2
"""How much more than the parent the first candidate of `shuffled` knows; the second twice that, and so on."""
UNLIKELY: Final = 1e-4
"""Below this chance the control has failed."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ControlConfig(_Frozen):
    """One null control."""

    kind: Kind
    steps: int = Field(default=200, ge=1)
    val: int = Field(default=90, ge=6)
    candidates: int = Field(default=3, ge=1)
    noise: float = Field(default=0.3, ge=0.0, le=1.0)
    """Share of the answers drawn anew in each evaluation."""
    ability: float = Field(default=0.3, gt=0.0, lt=1.0)
    """Share of the tasks that the parent knows."""
    seed: int = Field(default=1, ge=0)


class ControlResult(_Frozen):
    """What was seen over all steps, beside what the null says."""

    config: ControlConfig
    adoptions: int
    expected_adoptions: float
    gain: float
    """Mean apparent gain of a step in tasks; a step without an adoption counts as 0."""
    gain_error: float
    """Standard error of that mean under the null."""
    expected_gain: float
    said: float
    """Mean of the probability that a decision page would have named."""
    adoption_chance: float
    """Chance under the null of a number of adoptions at least as far out, two-sided."""

    @property
    def gain_distance(self) -> float:
        """Of the mean gain from the null, in standard errors."""
        difference = abs(self.gain - self.expected_gain)
        return difference / self.gain_error if self.gain_error else math.inf if difference > 1e-9 else 0.0

    @property
    def fits(self) -> bool:
        """Both numbers are such as the null gives."""
        return self.adoption_chance >= UNLIKELY and math.erfc(self.gain_distance / math.sqrt(2)) >= UNLIKELY


def run_control(config: ControlConfig, folder: Path, rule: Rule = select) -> ControlResult:
    """Run all steps; `folder` must not exist and is where the control freezes its release."""
    world = make_world(
        folder, val=config.val, noise=config.noise, seed=config.seed, shuffled=config.kind == "shuffled"
    )
    parent = Program(seed_harness(), config.ability)
    expected: list[Adoption] = []
    decisions: list[Decision] = []
    known: dict[tuple[float, ...], Adoption] = {}
    for step in range(1, config.steps + 1):
        candidates = _candidates(config, parent, step)
        abilities = (parent.ability, *(candidate.ability for candidate in candidates))
        if abilities not in known:
            own, *others = (score_distribution(world.chances(program)) for program in (parent, *candidates))
            known[abilities] = fresh_null(own, others)
        decision = _decide(world, parent, candidates, step, rule)
        expected.append(known[abilities])
        decisions.append(decision)
        parent = candidates[decision.index] if decision.index is not None else parent
    return _result(config, decisions, expected)


def _candidates(config: ControlConfig, parent: Program, step: int) -> list[Program]:
    made: list[Program] = []
    for index in range(config.candidates):
        code = f"{seed_harness().code}\n# control: step {step}, candidate {index}\n"
        more = _ABLER * (index + 1) if config.kind == "shuffled" else 0.0
        harness = Harness(code=code)
        assert duplicate_of(harness, parent.harness, [other.harness for other in made]) is None
        made.append(Program(harness, min(0.95, config.ability + more)))
    return made


def _decide(world: World, parent: Program, candidates: Sequence[Program], step: int, rule: Rule) -> Decision:
    return rule(
        world.evaluate(parent, f"{step}/parent"),
        [
            CandidateResult(index=index, evaluation=world.evaluate(candidate, f"{step}/{index}"))
            for index, candidate in enumerate(candidates)
        ],
        draws=_DRAWS,
    )


def _result(
    config: ControlConfig, decisions: Sequence[Decision], expected: Sequence[Adoption]
) -> ControlResult:
    steps, adoptions = len(decisions), sum(decision.adopted for decision in decisions)
    gains = [
        max(item.correct for item in decision.candidates if item.index == decision.index)
        - decision.parent_correct
        for decision in decisions
        if decision.adopted
    ]
    variance = sum(item.squared_gain - item.gain**2 for item in expected)
    counts = score_distribution([item.probability for item in expected])
    tails = sum(counts[: adoptions + 1]), sum(counts[adoptions:])
    return ControlResult(
        config=config,
        adoptions=adoptions,
        expected_adoptions=sum(item.probability for item in expected),
        gain=sum(gains) / steps,
        gain_error=math.sqrt(max(0.0, variance)) / steps,
        expected_gain=sum(item.gain for item in expected) / steps,
        said=sum(decision.null.probability for decision in decisions if decision.null) / steps,
        adoption_chance=min(1.0, 2 * min(tails)),
    )
