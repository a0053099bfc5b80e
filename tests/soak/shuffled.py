"""A release whose references are permuted: the same tasks, lake and marginals, verdicts without information.

For controls only; the product never makes or takes one by itself. The variant has a name and a digest of its
own, so that nothing measured on it is taken for the original. References are exchanged within each split,
answer format and number of options, so that every task keeps one that it could have, and drawn at random, not
as a derangement: a reference that never is one's own would say something too.
"""

import json
import random
from pathlib import Path
from typing import Any

from verifier.freeze import freeze
from verifier.layout import REFERENCES
from verifier.release import Release

_OWN = ("task", "canary")


def shuffle_release(original: Release, destination: Path, *, seed: int) -> Release:
    """Freeze the variant into `destination`, which must not exist. The same seed gives the same bytes."""
    references = _references(original)
    draws = random.Random(f"shuffled/{seed}")
    exchanged: dict[str, dict[str, Any]] = {}
    classes = {task.id: (task.split, str(task.answer_format), len(task.options)) for task in original.tasks}
    for kind in sorted(set(classes.values())):
        ids = [task for task, own in classes.items() if own == kind]
        exchanged |= dict(zip(ids, draws.sample([references[task] for task in ids], len(ids)), strict=True))
    header = original.header
    return freeze(
        destination,
        name=f"{header.name}-shuffled-{seed}",
        licence=header.licence,
        sources=list(header.sources),
        families=header.families,
        tasks=original.tasks,
        references=exchanged,
        lake=_files(original.root / "lake"),
        lake_descriptions=header.lake_descriptions,
        notes=("A control: its references are permuted, so its verdicts say nothing.",),
        no_training=header.no_training,
    )


def kept(original: Release, variant: Release) -> float:
    """Share of the tasks whose reference says what it said: what chance leaves."""
    one, other = _references(original), _references(variant)
    return sum(one[task] == other[task] for task in one) / len(one)


def _references(release: Release) -> dict[str, dict[str, Any]]:
    rows = map(json.loads, (release.root / REFERENCES).read_bytes().splitlines())
    return {row["task"]: {key: value for key, value in row.items() if key not in _OWN} for row in rows}


def _files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
