"""What of an audit a person should look at, in words. Must not measure anything itself."""

from collections.abc import Iterator, Sequence
from typing import Final

from verifier.audit.model import (
    SPLIT_ORDER,
    Answerability,
    Balance,
    Duplicates,
    Flag,
    Overlap,
    Pairs,
    Rule,
    Shared,
    SplitBaselines,
)
from verifier.task import Split

RULES: Final[dict[Rule, str]] = {
    "random": "a random option",
    "train_letter": "Train's commonest letter",
    "own_letter": "the split's own commonest letter",
    "longest": "the longest option",
    "shortest": "the shortest option",
    "first": "always A",
}
LIKELY: Final = 0.01
"""Above this probability by chance a shortcut is a note; there are several rules and splits."""
UNLIKE: Final = 0.3
"""Distance of subtopics from which two splits are called different exams."""


def flags(
    baselines: Sequence[SplitBaselines],
    balance: Balance,
    overlap: Overlap,
    duplicates: Duplicates,
    answerability: Answerability | None,
) -> tuple[Flag, ...]:
    """Warnings first."""
    found = [
        *_shortcuts(baselines),
        *_balance(balance),
        *_overlap(overlap, duplicates),
        *(_answers(answerability) if answerability is not None else ()),
    ]
    return tuple(sorted(found, key=lambda flag: flag.level != "warning"))


def _shortcuts(baselines: Sequence[SplitBaselines]) -> Iterator[Flag]:
    for split in baselines:
        random = next((item for item in split.baselines if item.rule == "random"), None)
        for item in split.baselines:
            if item.flagged and random is not None:
                likely = item.chance > LIKELY
                text = (
                    f"{split.split}: {RULES[item.rule]} is right in {item.within:.0%} of the "
                    f"{split.with_options} tasks with options, random in {random.within:.0%}"
                )
                text += f"; so few tasks give that by chance (p = {item.chance:.2g})" if likely else ""
                yield Flag(code="shortcut", level="note" if likely else "warning", text=text)


def _balance(balance: Balance) -> Iterator[Flag]:
    for distance in balance.distances:
        pair = f"{distance.one} and {distance.other}"
        if (distance.one, distance.other) == ("val", "test") and not any(
            row.val and row.test for row in balance.counts
        ):
            text = (
                "val and test have no subtopic in common: what is selected on val is not what test measures"
            )
            yield Flag(code="no-common-subtopic", level="warning", text=text)
        elif distance.subtopics > UNLIKE:
            text = f"{pair} are made up differently: {distance.subtopics:.0%} of the tasks would have to move"
            yield Flag(code="unlike-splits", level="warning", text=text)
    present: list[Split] = [split for split in SPLIT_ORDER if any(row.of(split) for row in balance.counts)]
    for split in present:
        missing = [f"{row.family}/{row.subtopic}" for row in balance.counts if not row.of(split)]
        if missing:
            text = (
                f"{split} has no task of {len(missing)} of {len(balance.counts)} subtopics: {_some(missing)}"
            )
            yield Flag(code="missing-subtopic", level="warning" if split == "train" else "note", text=text)
    if not balance.stratified:
        yield Flag(
            code="not-stratified",
            level="note",
            text=f"the splits are not stratified by subtopic: {balance.largest_deviation}",
        )


def _overlap(overlap: Overlap, duplicates: Duplicates) -> Iterator[Flag]:
    for shared in overlap.groups:
        text = f"{_between(shared)} {_number(shared.count, 'material group')} {_tasks(shared)}"
        yield Flag(code="shared-groups", level="warning", text=text)
    for pairs in overlap.passages:
        if pairs.undeclared:
            text = (
                f"{_between(pairs)} passages in {_number(pairs.undeclared, 'pair')} of tasks that declare no "
                f"common group{_example(pairs)}"
            )
            yield Flag(code="undeclared-passages", level="warning", text=text)
    for pairs in duplicates.same:
        if pairs.one != pairs.other:
            some = "1 task is" if pairs.tasks == 1 else f"{pairs.tasks} tasks are"
            text = f"{some} in {pairs.other} and in {pairs.one} too{_example(pairs)}"
            yield Flag(code="duplicates", level="warning", text=text)
        else:
            text = (
                f"{pairs.one} has {pairs.pairs} pairs of equal tasks, e.g. {' and '.join(pairs.examples[0])}"
            )
            yield Flag(code="duplicates", level="note", text=text)
    for shared in overlap.entities:
        text = f"{_between(shared)} {_number(shared.count, 'rare name')} {_tasks(shared)}"
        yield Flag(code="shared-names", level="note", text=text)


def _answers(answerability: Answerability) -> Iterator[Flag]:
    guesses = [f"{item.family}/{item.subtopic}" for item in answerability.subtopics if item.guess_only]
    if guesses:
        text = f"guess only: no lake file holds the answers of {len(guesses)} subtopics: {_some(guesses)}"
        yield Flag(code="guess-only", level="note", text=text)
    if answerability.unanswerable_total:
        number = _number(answerability.unanswerable_total, "task")
        text = f"{number} of subtopics that the lake answers without an answer in it"
        yield Flag(code="unanswerable", level="note", text=text)
    for skipped in answerability.files_skipped:
        yield Flag(code="lake-file", level="note", text=skipped)


def _between(item: Pairs | Shared) -> str:
    return f"{item.one} and {item.other} share"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _tasks(shared: Shared) -> str:
    return f"({_number(shared.tasks, f'{shared.other} task')})"


def _example(pairs: Pairs) -> str:
    return f", e.g. {' and '.join(pairs.examples[0])}" if pairs.examples else ""


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
