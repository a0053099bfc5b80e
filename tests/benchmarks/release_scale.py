"""Releases at scale: a million JSON lines imported and frozen, and a large lake verified.

    python -m tests.benchmarks.release_scale [--tasks 1000000] [--lake-mib 2048]

Each part runs in a process of its own, whose largest resident memory is taken. Limits: 60 s and 1 GiB for
import and freeze together, audit included; 300 MB/s for verifying.
"""

import argparse
import json
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verifier.draft import LAKE, Draft
from verifier.freeze import Declared, freeze_draft
from verifier.importers.jsonl import JsonLines
from verifier.verification import verify

LIMIT_SECONDS = 60.0
LIMIT_BYTES = 1 << 30
LIMIT_RATE = 300e6
SPLITS = ("train", "train", "train", "val", "test")
MIB = 1 << 20


def write_lines(path: Path, count: int) -> None:
    """Short questions of three formats, sixteen subtopics, three tasks a material group."""
    source = random.Random(1)
    with path.open("w", encoding="utf-8") as handle:
        for number in range(count):
            row: dict[str, Any] = {
                "id": f"task-{number:07d}",
                "family": f"family-{number % 4}",
                "subtopic": f"subtopic-{number % 16}",
                "group": f"group-{number // 3}",
                "split": SPLITS[number % 5],
                "question": f"Sample {source.randrange(10**9)}: which gene has variant rs{number}?",
            }
            gene = f"GENE{source.randrange(10**6)}"
            if number % 3 == 0:
                row |= {"answer": gene, "options": [f"{gene}-{other}" for other in range(3)]}
            elif number % 3 == 1:
                row |= {"answer": gene, "format": "symbol"}
            else:
                row |= {"answer": str(number), "format": "number", "relative": 0.01}
            handle.write(json.dumps(row) + "\n")


def make(folder: Path) -> None:
    draft = Draft.create(folder / "draft")
    draft.add(JsonLines(folder / "tasks.jsonl", licence="CC0-1.0"))
    freeze_draft(draft, folder / "many", Declared(name="many"))


def make_lake(folder: Path, mib: int) -> None:
    write_lines(folder / "few.jsonl", 100)
    draft = Draft.create(folder / "few-draft")
    draft.add(JsonLines(folder / "few.jsonl", licence="CC0-1.0"))
    source = random.Random(2)
    (draft.root / LAKE).mkdir()
    for number in range(4):
        with (draft.root / LAKE / f"table-{number}.bin").open("wb") as handle:
            for _ in range(mib // 4):
                handle.write(source.randbytes(MIB))
    freeze_draft(draft, folder / "large", Declared(name="large"))


def check_many(folder: Path) -> None:
    verify(folder / "many")


def check_large(folder: Path) -> None:
    verify(folder / "large")


def measured(work: Callable[[Path], None], folder: Path) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and largest resident bytes of the work, in a fresh process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(work, folder, sender))
    child.start()
    result = receiver.recv()
    child.join()
    return result


def _run(work: Callable[[Path], None], folder: Path, sender: Any) -> None:
    started = time.perf_counter()
    work(folder)
    wall = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_SELF)
    sender.send((wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description="Import, freeze and verify at scale.")
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--lake-mib", type=int, default=2048)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rinr-scale-") as name:
        folder = Path(name)
        write_lines(folder / "tasks.jsonl", options.tasks)
        wall, cpu, memory = measured(make, folder)
        print(f"{options.tasks:,} tasks imported, frozen and audited: {wall:.1f} s, ", end="")
        print(f"{wall / LIMIT_SECONDS:.2f} of the limit, CPU {cpu:.1f} s; ", end="")
        print(f"{memory / MIB:.0f} MiB, {memory / LIMIT_BYTES:.2f} of the limit")
        wall, cpu, memory = measured(check_many, folder)
        print(f"the same verified: {wall:.1f} s, CPU {cpu:.1f} s, {memory / MIB:.0f} MiB")
        make_lake(folder, options.lake_mib)
        wall, cpu, memory = measured(check_large, folder)
        rate = options.lake_mib * MIB / wall
        print(f"lake of {options.lake_mib} MiB verified: {rate / 1e6:.0f} MB/s, ", end="")
        print(f"{rate / LIMIT_RATE:.2f} of the limit, {memory / MIB:.0f} MiB")


if __name__ == "__main__":
    main()
