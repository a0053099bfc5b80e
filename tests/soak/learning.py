"""Does the RL phase learn, and does it learn from the verdicts alone? `./run soak`

    python -m tests.soak.learning OUT --seeds 1 2 3 --device cpu --updates 8 [--shuffled]

Runs the laptop recipe's RL phase once a seed, each in processes of its own, under the program that the
recipe's first harness phase adopts. `--shuffled` is the control: the same, trained on permuted references and
measured on the true ones. Writes OUT/learning.json or OUT/control.json, OUT/reward-curves.png of both,
OUT/comparison.json once both are there, and each seed's folder; a seed that is finished there is not run
again. The criteria stand in `curves`; the exit status is 1 if one that applies is not met. On two idle cores
a seed takes about five minutes.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.engine.default_model import DEFAULT_MODEL, find_model
from tests.soak.curves import Comparison, PhaseResult, Verdict, compare, judge
from tests.soak.phase import RESULT, Phase, recipe
from tests.soak.shuffled import shuffle_release
from verifier.release import find

ROOT = Path(__file__).parents[2]


def plan(options: Any, out: Path) -> list[Phase]:
    """The phases that are asked for, with their folders made."""
    training = _shuffled(out, options.release, options.shuffle_seed) if options.shuffled else None
    kind = "shuffled" if options.shuffled else "true"
    phases = [
        Phase(
            seed=seed,
            folder=out / f"{kind}-seed-{seed}",
            model=find_model(options.model, options.cache).absolute(),
            cache=options.cache.absolute(),
            release=options.release,
            training_release=None if training is None else str(training),
            device=options.device,
            threads=options.threads,
            **recipe(options.updates),
        )
        for seed in options.seeds
    ]
    for phase in phases:
        phase.folder.mkdir(parents=True, exist_ok=True)
        (phase.folder / "phase.json").write_text(phase.model_dump_json(indent=1))
    return phases


def _shuffled(out: Path, release: str, seed: int) -> Path:
    folder = out / f"shuffled-release-{seed}"
    if not folder.exists():
        shuffle_release(find(release), folder, seed=seed)
    return folder


def run(phases: Sequence[Phase], parallel: int) -> list[PhaseResult]:
    """All phases, some at a time. Raises RuntimeError with the log's place when one fails."""
    waiting = [phase for phase in phases if not (phase.folder / RESULT).exists()]
    running: list[tuple[Phase, subprocess.Popen[bytes]]] = []
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                phase = waiting.pop(0)
                command = [sys.executable, "-m", "tests.soak.phase", str(phase.folder / "phase.json")]
                child = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": search})
                running.append((phase, child))
            phase, child = running[0]
            if child.wait():
                raise RuntimeError(f"seed {phase.seed} ended with status {child.returncode}: {phase.folder}")
            del running[0]
    finally:
        for _, child in running:
            if child.poll() is None:
                child.terminate()
            child.wait()
    return [PhaseResult.model_validate_json((phase.folder / RESULT).read_bytes()) for phase in phases]


def conclude(out: Path, results: Sequence[PhaseResult]) -> tuple[Verdict, Comparison | None]:
    """Write results and verdict, draw what is there of both kinds, and compare them where both are."""
    verdict = judge(results)
    name = "control" if results[0].shuffled else "learning"
    whole = {
        "verdict": verdict.model_dump(mode="json"),
        "phases": [r.model_dump(mode="json") for r in results],
    }
    (out / f"{name}.json").write_text(json.dumps(whole, indent=1))
    kinds = [_phases(out / file) for file in ("learning.json", "control.json")]
    try:
        from tests.soak.figure import draw
    except ImportError as error:
        print(f"no figure here: {error.name} is missing", file=sys.stderr)
    else:
        draw([*kinds[0], *kinds[1]], out / "reward-curves.png")
    if not all(kinds):
        return verdict, None
    try:
        comparison = compare(*kinds)
    except ValueError as error:
        print(f"not compared: {error}", file=sys.stderr)
        return verdict, None
    (out / "comparison.json").write_text(comparison.model_dump_json(indent=1))
    return verdict, comparison


def _phases(file: Path) -> list[PhaseResult]:
    if not file.exists():
        return []
    return [PhaseResult.model_validate(phase) for phase in json.loads(file.read_text())["phases"]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.learning", description="RL phases by seed.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--updates", type=int, default=None, help="default: the recipe's")
    parser.add_argument("--shuffled", action="store_true", help="train on permuted references")
    parser.add_argument("--shuffle-seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=None, help="of torch, in each seed's processes")
    parser.add_argument("--parallel", type=int, default=1, help="seeds at a time")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a model folder, or the default model's name")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache")
    parser.add_argument("--release", default="open-genomics")
    options = parser.parse_args(arguments)
    out: Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    phases = plan(options, out)
    results = run(phases, options.parallel)
    verdict, comparison = conclude(out, results)
    print("\n".join([*verdict.lines(), *([comparison.line()] if comparison else [])]))
    return 0 if verdict.met and (comparison is None or comparison.met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
