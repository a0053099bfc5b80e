"""What an audit says about a release: frozen aggregates, never an answer (DATA-05).

Task ids in it are examples to look at; ids are not secret. Must not know how anything was measured.
"""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from verifier.task import Split

AUDIT_VERSION: Final = 1
"""Raised whenever equal tasks give another audit."""

AUDIT_FILE: Final = "private/audit.json"
"""Where a release keeps it."""

SPLIT_ORDER: Final[tuple[Split, ...]] = ("train", "val", "test")

Rule = Literal["random", "train_letter", "own_letter", "longest", "shortest", "first"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Flag(_Frozen):
    """Something a person should look at."""

    code: str
    """A short name that stays, e.g. `shortcut`, `no-common-subtopic`."""
    level: Literal["warning", "note"]
    text: str


class Baseline(_Frozen):
    """What one rule without any knowledge scores on one split."""

    rule: Rule
    right: float
    """Expected right answers; ties are shared, so it may be a fraction."""
    within: float
    """Share of the split's tasks with options."""
    whole: float
    """Share of all tasks of the split, those without options counted as wrong: compares with an accuracy."""
    chance: float
    """Probability that random letters score at least as well, in any of the letters where the rule takes the
    commonest of the split itself; 1.0 for the rule `random`."""
    flagged: bool
    """More than 10 points above random within the tasks with options."""


class SplitBaselines(_Frozen):
    split: Split
    tasks: int
    with_options: int
    unanswered: int
    """Tasks with options whose right letter was not handed over: they are in no baseline."""
    baselines: tuple[Baseline, ...]


class SubtopicCount(_Frozen):
    family: str
    subtopic: str
    train: int
    val: int
    test: int

    def of(self, split: Split) -> int:
        return {"train": self.train, "val": self.val, "test": self.test}[split]


class Distance(_Frozen):
    """How unlike two splits are made up: total variation distance, 0 (equal) to 1 (nothing in common)."""

    one: Split
    other: Split
    families: float
    subtopics: float


class Balance(_Frozen):
    counts: tuple[SubtopicCount, ...]
    distances: tuple[Distance, ...]
    """Of every two splits that have tasks."""
    stratified: bool
    """Every subtopic's share of every split is its share of the release, to within one task or the
    largest material group."""
    largest_deviation: str
    """The subtopic and split farthest from proportion, in words; empty when all are in proportion."""


class Pairs(_Frozen):
    """Overlap between two splits, or inside one when both names are equal."""

    one: Split
    other: Split
    pairs: int
    """Pairs of tasks, one of each split."""
    tasks: int
    """Tasks of `other` that are in one of the pairs."""
    undeclared: int
    """Pairs whose material groups differ."""
    examples: tuple[tuple[str, str], ...]
    """Ids of the pairs with most in common, undeclared ones first."""


class Shared(_Frozen):
    """Things that occur on both sides of two splits."""

    one: Split
    other: Split
    count: int
    tasks: int
    """Tasks of `other` that have one of them."""
    examples: tuple[tuple[str, str], ...]


class Overlap(_Frozen):
    """What the splits share, declared and measured (DATA-03)."""

    groups: tuple[Shared, ...]
    """Declared material groups that occur in two splits."""
    passages: tuple[Pairs, ...]
    """Tasks that share a passage, found by eight-word shingles, whether or not it is declared."""
    entities: tuple[Shared, ...]
    """Rare names (a digit, an underscore or an inner capital) of the questions that occur in two splits."""


class Duplicates(_Frozen):
    same: tuple[Pairs, ...]
    """Tasks with equal question and equal options, order, case and punctuation aside."""
    questions: int
    """Questions (options aside) that more than one task asks, e.g. `Which of these is benign?`."""
    option_sets: int
    """Sets of options that more than one task has."""


class FileHolds(_Frozen):
    """What one lake file holds for one subtopic. Counts of tasks."""

    file: str
    determines: int
    """A row has the right answer beside a name from the question, and no such row has a wrong one."""
    mentions: int
    """The right answer and a name from the question, in one file but not as above."""


class SubtopicAnswers(_Frozen):
    family: str
    subtopic: str
    tasks: int
    """Tasks that were checked."""
    determined: int
    """Tasks that at least one file determines."""
    mentioned: int
    """Tasks that none determines and at least one mentions."""
    files: tuple[FileHolds, ...]
    """Those that hold anything, the most helpful first."""
    guess_only: bool
    """No lake file determines an answer, and files mention those of fewer than half of its tasks."""


class Answerability(_Frozen):
    """Which lake file answers which subtopic: a search for names, so computed answers are not seen."""

    subtopics: tuple[SubtopicAnswers, ...]
    unanswerable: tuple[str, ...]
    """Train tasks, at most 200, that no file mentions, of subtopics of which files hold half the answers."""
    unanswerable_total: int
    """Such tasks over all splits."""
    files_read: int
    files_skipped: tuple[str, ...]
    """Files that were not searched or only in part, each with the reason."""


class Audit(_Frozen):
    """`private/audit.json` of a release."""

    version: int = AUDIT_VERSION
    tasks: int
    baselines: tuple[SplitBaselines, ...]
    balance: Balance
    overlap: Overlap
    duplicates: Duplicates
    answerability: Answerability | None
    """None for a release without a lake."""
    limits: tuple[str, ...]
    """What was sampled or cut, in words; empty when everything was looked at."""
    flags: tuple[Flag, ...]

    @property
    def warnings(self) -> tuple[Flag, ...]:
        return tuple(flag for flag in self.flags if flag.level == "warning")
