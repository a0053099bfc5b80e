"""Quotations: runs of words that one text of a collection has and no other one.

Must not know what the texts are.
"""

import re
from collections.abc import Iterator, Sequence

_WORD = re.compile(r"\w+")


def distinctive_run(text: str, wanted: Sequence[str], others: Sequence[str], length: int) -> Iterator[str]:
    """For each wanted text that shares with `text` a run of `length` words no further one has: that run.

    What several texts have in common is wording of a kind of question and says nothing of any one.
    """
    have = {run for line in text.split("\n") for run in _runs(line, length)}
    if not have:
        return
    shared: dict[str, int] = {}
    first: dict[int, list[str]] = {}
    for number, other in enumerate((*wanted, *others)):
        for run in {run for run in _runs(other, length) if run in have}:
            shared[run] = shared.get(run, 0) + 1
            if number < len(wanted):
                first.setdefault(number, []).append(run)
    for runs in first.values():
        alone = sorted(run for run in runs if shared[run] == 1)
        if alone:
            yield alone[0]


def _runs(text: str, length: int) -> Iterator[str]:
    words = _WORD.findall(text.casefold())
    return (" ".join(words[at : at + length]) for at in range(len(words) - length + 1))
