"""The embedded trainer on a Qwen3.5-4B-shaped model with random weights, and a plain loop as its peer.

`python -m tests.gpu.train_4b OUT [--only NAME ...] [--minutes 10] [--tiny]`. Every variant writes a line of
the table and an entry of OUT/train_4b.json; one that fails loses only itself. `--only` takes beginnings of
variants' names; `more` are the slow comparisons. `--tiny` runs the same code on a CPU.
"""

# torch and transformers are annotated only in part:
# pyright: basic

import argparse
import functools
import os
import traceback
from pathlib import Path
from typing import Any

# Before torch: packs differ in size, and fixed blocks would leave holes between them.
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

from tests.gpu import peer_4b
from tests.gpu.bench_4b import Bench, machine
from tests.gpu.check_4b import check
from tests.gpu.model_4b import PEAK, build
from tests.gpu.ours_4b import Ours


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of variants' names")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=160_000, help="of the rows that share nothing")
    options = parser.parse_args()
    bench = Bench(
        options.out, tiny=options.tiny, minutes=options.minutes, only=options.only, tokens=options.tokens
    )
    bench.note("machine", machine())
    if not options.only or any(not name.startswith(("check", "peer")) for name in options.only):
        _ours(bench)
    bench.run("check", lambda: check(bench))
    for batch, length in ((4, 2_048), (1, 8_192)):
        bench.run(f"peer {batch} x {length}", functools.partial(_peer, bench, batch, length))
    bench.table()


def _peer(bench: Bench, batch: int, length: int) -> dict[str, Any]:
    model = build(bench.device, bench.shape, bench.dtype)
    return peer_4b.loop(model, batch, 64 if bench.tiny else length, PEAK)


def _ours(bench: Bench) -> None:
    try:
        ours = Ours(bench)
    except Exception as error:  # the peer is still worth its numbers
        bench.note("build", {"error": f"{type(error).__name__}: {error}"})
        traceback.print_exc()
        return
    # In order of what is worth most: the first one compiles and tunes the kernels, which takes minutes.
    bench.run("rows, 8k packs", lambda: ours.update(bench.rows))
    bench.run("64 growing episodes", lambda: ours.update(bench.growing, repeat=1))
    bench.run("profile", ours.profile)
    bench.run("rows, all checkpointed", lambda: ours.update(bench.rows, checkpointing=1_000))
    bench.run("rows, 16k packs", lambda: ours.update(bench.rows, budget=2 * ours.budget))
    bench.run("long rows", lambda: ours.update(bench.long, repeat=1))
    bench.run("describe", ours.describe)
    if "more" in bench.only:
        ours.compare()


if __name__ == "__main__":
    main()
