"""The frozen view of a run: what the report, the figures and the tables show, and nothing else.

Only recorded measurements appear (REP-02). A score always travels with its denominator and its attempt budget
(REP-01), and is split into completion and hit rate (REP-05). Must not know tables, records or HTML:
`report/assemble.py` fills these types, the other modules read them.
"""

from dataclasses import dataclass, field
from math import prod
from typing import Final, Literal

from report.changes import DiffLine
from report.malformed import Malformed
from report.model_phases import PassAt
from report.numbers import Paired, wilson
from report.step_view import StepView

STEPS: Final = "steps"
"""Folder of the steps' pages, beside the report that links to them."""

ATTEMPTS: Final = "1 attempt"
"""Every accuracy here is that of the first answer of one episode a task."""

SPLIT_LABELS: Final = {
    "train": "Train reward (changing samples)",
    "val": "Val (selection)",
    "test": "Test (recorded at stage boundaries)",
}

Kind = Literal[
    "phase_baseline_test",
    "step_val_parent",
    "step_val_candidate",
    "step_val_again",
    "phase_end_test",
    "rl_baseline_test",
    "export_test",
    "adaptation_batch",
    "validation_initial",
    "validation_selected",
    "periodic_val",
    "pass_before",
    "pass_after",
    "evaluation",
]

KIND_LABELS: Final[dict[str, str]] = {
    "phase_baseline_test": "phase start",
    "step_val_parent": "parent",
    "step_val_candidate": "candidate",
    "step_val_again": "parent again",
    "phase_end_test": "phase end",
    "rl_baseline_test": "RL start",
    "export_test": "loaded export",
    "adaptation_batch": "batch",
    "validation_initial": "initial program",
    "validation_selected": "selected program",
    "periodic_val": "during training",
    "pass_before": "pass@k before",
    "pass_after": "pass@k after",
    "evaluation": "separate evaluation",
}

LAYERS: Final = ("correct", "wrong", "tool", "format", "unfinished")
"""Where an episode ended, from the best to the earliest failure; every episode is in exactly one layer."""

LAYER_NOTES: Final = {
    "correct": "the first answer verifies",
    "wrong": "valid answer, no tool call failed, and yet wrong",
    "tool": "valid answer, wrong, and at least one tool call had failed",
    "format": "something was submitted, but not one readable answer",
    "unfinished": "nothing was submitted; the reason is given",
}


@dataclass(frozen=True, slots=True)
class Layers:
    """How many episodes of one measurement ended in each layer (REP-05)."""

    correct: int = 0
    wrong: int = 0
    tool: int = 0
    format: int = 0
    unfinished: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    """Stop reasons of the unfinished ones, most frequent first."""

    def count(self, layer: str) -> int:
        return int(getattr(self, layer))


@dataclass(frozen=True, slots=True)
class FamilyScore:
    family: str
    correct: int
    total: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One recorded evaluation of one program on one split under one model."""

    cycle: int
    step: int | None
    kind: str
    split: str
    harness: str
    """Digest of the program."""
    model: str
    """Identity of the task model."""
    correct: int
    total: int
    valid: int
    """Tasks with a readable first answer; the rest never got to be right."""
    measured_by: str
    """The run that measured it (REP-03)."""
    candidate: int | None = None
    layers: Layers | None = None
    """None when the catalog holds only the sums."""
    families: tuple[FamilyScore, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    """Why submitted answers could not be read."""
    server_losses: int = 0
    """Inference servers that were lost under it, each replaced before it was taken again (HOST-10)."""
    outcomes: dict[str, bool] = field(default_factory=dict[str, bool])
    """Task id to right or wrong, for paired tables; may be empty."""

    @property
    def phase(self) -> str:
        letter = "r" if self.kind in ("rl_baseline_test", "export_test", "periodic_val") else "h"
        return f"{letter}{self.cycle:04d}" if self.cycle else "–"

    @property
    def label(self) -> str:
        step = f"step {self.step} " if self.step is not None and self.kind.startswith("step_val") else ""
        if self.kind == "adaptation_batch":
            return f"batch {self.step}"
        number = f" {self.candidate}" if self.candidate is not None else ""
        return f"{step}{KIND_LABELS.get(self.kind, self.kind)}{number}"

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.correct, self.total)

    @property
    def completion(self) -> float | None:
        return self.valid / self.total if self.total else None

    @property
    def hit_rate(self) -> float | None:
        return self.correct / self.valid if self.valid else None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One proposal of a step and what became of it."""

    index: int
    """Its place among the step's proposals, as recorded."""
    harness: str
    correct: int | None
    total: int | None
    status: str
    """`adopted`, `compared` on Val, or `dropped` before it."""
    reason: str
    hypothesis: str
    rationale: str
    evidence: tuple[str, ...]
    paired: Paired | None
    p_value: float | None
    interval: tuple[float, float] | None
    """Bootstrap interval of the gain over the parent, in shares, clustered by material group."""
    code: str
    """Program text, or empty when there is none."""
    diff: tuple[DiffLine, ...]
    """Against the parent."""


@dataclass(frozen=True, slots=True)
class Null:
    """What a step would show if no candidate were better than the parent."""

    noise: float
    """Share of the answers that is drawn anew, as estimated from the changed answers."""
    probability: float
    """Of a spurious adoption."""
    mean_gain: float
    """Mean apparent gain of one, a share of Val."""
    as_large: float | None
    """Probability of a gain at least as large as the one that was adopted."""


@dataclass(frozen=True, slots=True)
class Again:
    """The parent against itself: how many answers change although nothing has."""

    paired: Paired
    interval: tuple[float, float] | None

    @property
    def flips(self) -> int:
        return self.paired.fixed + self.paired.broken


@dataclass(frozen=True, slots=True)
class Spurious:
    """The null over all steps of a run."""

    steps: int
    adopted: int
    expected: float
    """Adoptions to be expected if no candidate were ever better."""
    any: float
    """Probability of at least one."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One step's comparison on all Val tasks."""

    cycle: int
    step: int
    parent: str
    parent_correct: int | None
    parent_total: int | None
    adopted: int | None
    """Index of the adopted candidate; None keeps the parent."""
    reason: str
    candidates: tuple[Candidate, ...]
    null: Null | None = None
    again: Again | None = None
    """The parent measured a second time, where that was asked for (A/A)."""

    @property
    def name(self) -> str:
        return f"h{self.cycle:04d}-{self.step}"

    @property
    def winner(self) -> Candidate | None:
        return next((item for item in self.candidates if item.status == "adopted"), None)


@dataclass(frozen=True, slots=True)
class Update:
    """One optimiser update of an RL phase; a number that was not recorded is None."""

    cycle: int
    update: int
    reward: float | None
    """Mean reward of the batch: training samples change at every update."""
    episodes: int | None
    grad_norm: float | None
    clip_share: float | None
    logprob_gap: float | None
    """Mean absolute difference between the rollout's and the trainer's log-probabilities."""
    flat_groups: int | None
    """Prompts whose attempts were all right or all wrong: nothing to learn from."""
    lost_prompts: int | None
    """Prompts masked because our infrastructure lost an attempt."""
    tokens_per_second: float | None
    """Generation alone."""
    seconds: float | None
    """Generation, update and switching together."""
    entropy: float | None = None
    """Of the policy before the step, in nats a token."""
    skipped: str = ""
    """Why no step was taken: `no_contrast` or `not_finite`; empty for a step."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of the stages that this run itself computed."""

    phase: str
    stage: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunView:
    run_id: str
    recipe: str
    status: str
    detail: str
    started: str
    seconds: float | None
    release: str
    no_training: bool
    """The release asks not to be trained on (REP-04)."""
    seeds: tuple[tuple[str, str], ...]
    identities: tuple[tuple[str, str], ...]
    machine: tuple[tuple[str, str], ...]
    config: str
    """The configuration as indented JSON."""
    measurements: tuple[Measurement, ...]
    decisions: tuple[Decision, ...]
    updates: tuple[Update, ...]
    costs: tuple[Cost, ...]
    harnesses: tuple[tuple[str, str], ...]
    """Short name (H0, H1, ...) and digest of each program that was ever the parent, in order."""
    programs: tuple[tuple[str, str], ...]
    """Short name and text of those programs, as far as they are stored."""
    models: tuple[tuple[str, str], ...]
    """Short name (M0, M1, ...) and identity of each task model, in order."""
    steps: tuple[StepView, ...] = ()
    """What the page of each step shows beside its decision."""
    periodic: tuple[Measurement, ...] = ()
    """Val between updates of `mode=model`, by phase and update; `step` counts the updates before it."""
    passes: tuple[PassAt, ...] = ()
    """pass@k before and after the RL phases of `mode=model`."""
    mode: str = "cycle"
    trigger: str = "always_debug"
    """Of the handover to RL: under `improvement` Test steered the schedule (SCHED-06)."""
    reward: str = "verdict"
    """What training was rewarded for: the verdict, or R of a task's `rubric` (RL-04)."""

    @property
    def boundaries(self) -> tuple[Measurement, ...]:
        """Test at stage boundaries, in the order of the schedule."""
        return tuple(item for item in self.measurements if item.split == "test" and item.kind != "evaluation")

    @property
    def selections(self) -> tuple[Measurement, ...]:
        """Val of parents and candidates, in the order of the schedule."""
        return tuple(item for item in self.measurements if item.kind.startswith("step_val"))

    @property
    def batches(self) -> tuple[Measurement, ...]:
        """Train batches of an adaptation, in order; each holds other tasks (SCHED-10)."""
        return tuple(item for item in self.measurements if item.kind == "adaptation_batch")

    @property
    def validations(self) -> tuple[Measurement, ...]:
        """Val of the initial and of the selected program of an adaptation, which chose nothing there."""
        return tuple(item for item in self.measurements if item.kind.startswith("validation"))

    @property
    def malformed(self) -> tuple[Measurement, ...]:
        """The measurements in which a submitted answer could not be read, in the order of the schedule."""
        return tuple(item for item in self.measurements if item.malformed)

    def won(self, item: Measurement) -> bool:
        """It is the Val measurement of a candidate that its step adopted."""
        return item.kind == "step_val_candidate" and any(
            decision.adopted is not None
            and (decision.cycle, decision.step, decision.adopted) == (item.cycle, item.step, item.candidate)
            for decision in self.decisions
        )

    @property
    def journey(self) -> tuple[Measurement, ...]:
        """Test at every boundary, Val of every parent and every adopted candidate, Val of an adaptation."""
        beside = ("step_val_candidate", "step_val_again", "adaptation_batch")
        return tuple(item for item in self.measurements if item.kind not in beside or self.won(item))

    def spurious(self, until: Decision | None = None) -> Spurious | None:
        """The null over the run's steps, up to one of them; None before any had candidates on Val."""
        last = (until.cycle, until.step) if until is not None else None
        nulls = [
            (item.null.probability, item.winner)
            for item in self.decisions
            if item.null is not None and (last is None or (item.cycle, item.step) <= last)
        ]
        if not nulls:
            return None
        return Spurious(
            steps=len(nulls),
            adopted=sum(winner is not None for _, winner in nulls),
            expected=sum(chance for chance, _ in nulls),
            any=1 - prod(1 - chance for chance, _ in nulls),
        )

    def step(self, decision: Decision) -> StepView | None:
        return next(
            (item for item in self.steps if (item.cycle, item.step) == (decision.cycle, decision.step)), None
        )

    @property
    def evaluations(self) -> tuple[Measurement, ...]:
        """Measurements outside the schedule."""
        return tuple(item for item in self.measurements if item.kind == "evaluation")

    def harness_name(self, digest: str) -> str:
        return next((name for name, known in self.harnesses if known == digest), digest[7:15] or "–")

    def model_name(self, identity: str) -> str:
        return next((name for name, known in self.models if known == identity), identity[:24] or "–")
