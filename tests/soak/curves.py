"""What training curves say: a trend over updates, a paired change on Test, and the criteria.

learned   in every seed, Test under the true references is higher after than before with an exact two-sided
          McNemar p below 0.05; and the training reward rises over the updates, one-sided permutation p below
          0.05 over all seeds together.
control   trained on permuted references, the training reward does not rise (p of at least 0.05); and of the
          Test tasks whose answer could be read before and after, no more are right after than before with p
          below 0.05, all seeds taken together.
more      where phases of both kinds are there: Test gains more under the true references than under permuted
          ones, one-sided exact permutation of the seeds, p of at most 0.05.
each      no Test episode ran out of time: a machine that is busy enough makes every model worse.

The first was written down before any run. The other two took the place of "no control seed has a higher Test
with p below 0.05" after nine control seeds, and before the seeds that are judged by them (docs/learning.md).
Must not know how a phase is run.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from report.numbers import pair

ALPHA: Final = 0.05
_DRAWS: Final = 20_000


class PhaseResult(BaseModel):
    """One seed's RL phase, with Test under the true references on both sides of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    shuffled: bool
    rewards: tuple[float, ...]
    """Mean over the attempts of each update, under the references that were trained on."""
    completion_rates: tuple[float, ...]
    """Share of the attempts with an answer in valid format."""
    zero_variance_groups: tuple[int, ...]
    before: dict[str, bool]
    """By Test task id, temperature 0, the base model."""
    after: dict[str, bool]
    """The same with the loaded export."""
    valid_before: int
    """Test tasks with an answer in valid format."""
    valid_after: int
    read: tuple[str, ...] | None = None
    """Test tasks with an answer in valid format on both sides; None in results from before this was kept."""
    timed_out: int | None = None
    """Test episodes of both sides that ended by the clock: what they say, the machine's load said. None in
    results from before this was counted."""
    identities: dict[str, str]
    """Digests of harness, base, export, contract, and of the releases trained and measured on."""
    device: str
    seconds: float
    load: float
    """Of the machine, when the phase began."""

    def change(self) -> "Change":
        """On all of Test."""
        return change(self.before, self.after)

    @property
    def gain(self) -> int:
        """Test tasks more than before."""
        return sum(self.after.values()) - sum(self.before.values())


class Change(BaseModel):
    """Test before and after, paired by task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    before: int
    after: int
    total: int
    fixed: int
    broken: int
    p_value: float
    """Exact two-sided McNemar."""

    @property
    def higher(self) -> bool:
        return self.after > self.before and self.p_value < ALPHA


def change(before: Mapping[str, bool], after: Mapping[str, bool]) -> Change:
    """Both by task. ValueError unless they cover the same ones."""
    found = pair(before, after)
    if found is None:
        raise ValueError("before and after must cover the same Test tasks")
    return Change(
        before=sum(before.values()),
        after=sum(after.values()),
        total=len(before),
        fixed=found.fixed,
        broken=found.broken,
        p_value=found.p_value,
    )


def known(results: Sequence[PhaseResult]) -> Change | None:
    """All seeds' tasks whose answer could be read on both sides: what was learned beside the answer's form.

    None where nothing is known of that. One task counts once a seed.
    """
    if any(result.read is None for result in results):
        return None
    pairs = [(result, task) for result in results for task in result.read or ()]
    if not pairs:
        return None
    return change(
        {f"{result.seed}/{task}": result.before[task] for result, task in pairs},
        {f"{result.seed}/{task}": result.after[task] for result, task in pairs},
    )


def slope(rewards: Sequence[float]) -> float:
    """Least-squares change of the reward per update; 0 for fewer than two."""
    middle = (len(rewards) - 1) / 2
    spread = sum((place - middle) ** 2 for place in range(len(rewards)))
    return sum((place - middle) * reward for place, reward in enumerate(rewards)) / spread if spread else 0.0


def rising_p(curves: Mapping[int, Sequence[float]], *, draws: int = _DRAWS) -> float:
    """One-sided permutation p of the sum of slopes: rewards exchanged among each seed's own updates."""
    generator = np.random.default_rng(0)
    sums = np.zeros(draws)
    for rewards in curves.values():
        places = np.arange(len(rewards)) - (len(rewards) - 1) / 2
        exchanged = generator.permuted(np.tile(rewards, (draws, 1)), axis=1)
        sums += exchanged @ places / max(float(places @ places), 1e-12)
    observed = sum(map(slope, curves.values()))
    # Equal sums of rounded numbers differ in the last bits; such a tie counts.
    return (int((sums >= observed - 1e-9).sum()) + 1) / (draws + 1)


class Verdict(BaseModel):
    """A criterion, and what it was decided on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    criterion: str
    met: bool
    changes: dict[int, Change]
    slopes: dict[int, float]
    rising_p: float
    known: Change | None
    """Of answers that could be read on both sides, all seeds together."""
    timed_out: int

    def lines(self) -> list[str]:
        said = [
            f"seed {seed}: Test {change.before} -> {change.after} of {change.total} "
            f"({change.fixed} fixed, {change.broken} broken, p = {change.p_value:.2g}), "
            f"reward {self.slopes[seed]:+.4f} an update"
            for seed, change in self.changes.items()
        ]
        if self.known is not None:
            said.append(
                f"readable before and after, all seeds: {self.known.before} -> {self.known.after} of "
                f"{self.known.total} ({self.known.fixed} fixed, {self.known.broken} broken, "
                f"p = {self.known.p_value:.2g})"
            )
        return [
            *said,
            *([f"{self.timed_out} Test episodes ran out of time"] if self.timed_out else []),
            f"rising reward over all seeds: p = {self.rising_p:.2g}",
            f"{self.criterion}: {'met' if self.met else 'NOT met'}",
        ]


def judge(results: Sequence[PhaseResult]) -> Verdict:
    """Apply the criterion that fits; all results are of one kind. ValueError otherwise."""
    kinds = {result.shuffled for result in results}
    if len(kinds) != 1:
        raise ValueError("a verdict is on phases of one kind: all shuffled, or none")
    shuffled = kinds.pop()
    changes = {result.seed: result.change() for result in results}
    trend = rising_p({result.seed: result.rewards for result in results})
    content = known(results)
    if shuffled:
        met = trend >= ALPHA and content is not None and not content.higher
    else:
        met = trend < ALPHA and all(change.higher for change in changes.values())
    timed_out = sum(result.timed_out or 0 for result in results)
    return Verdict(
        criterion="permuted references teach nothing" if shuffled else "the RL phase learns",
        met=met and not timed_out,
        changes=changes,
        slopes={result.seed: slope(result.rewards) for result in results},
        rising_p=trend,
        known=content,
        timed_out=timed_out,
    )


class Comparison(BaseModel):
    """Test's gain under the true references beside that under permuted ones; a seed is one reading."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gains: tuple[int, ...]
    control_gains: tuple[int, ...]
    p_value: float
    """One-sided, exact: the share of all ways to deal the gains out whose difference is no smaller."""
    met: bool

    def line(self) -> str:
        said = "; ".join(
            f"{name} {', '.join(f'{gain:+d}' for gain in gains)}"
            for name, gains in (("true", self.gains), ("permuted", self.control_gains))
        )
        verdict = "met" if self.met else "NOT met"
        return f"the true references teach more: {said}; p = {self.p_value:.2g}: {verdict}"


def compare(results: Sequence[PhaseResult], controls: Sequence[PhaseResult]) -> Comparison:
    """Both kinds' gains on Test. Three seeds of each can just reach the criterion.

    ValueError unless all had the same program, base, contract and Test.
    """
    for name in ("harness", "base", "contract", "measured on"):
        if len({result.identities.get(name) for result in (*results, *controls)}) > 1:
            raise ValueError(
                f"phases of another {name} cannot be compared: give each comparison its own folder"
            )
    gains, control_gains = tuple(r.gain for r in results), tuple(r.gain for r in controls)
    dealt = [sum(chosen) for chosen in combinations((*gains, *control_gains), len(gains))]
    p_value = sum(total >= sum(gains) for total in dealt) / len(dealt)
    late = any(result.timed_out for result in (*results, *controls))
    return Comparison(
        gains=gains, control_gains=control_gains, p_value=p_value, met=p_value <= ALPHA and not late
    )
