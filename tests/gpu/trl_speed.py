"""The embedded trainer and engine beside TRL's GRPO on one GPU, on the same rows.

    python -m tests.gpu.trl_speed OUTDIR [--model DIR] [--site FOLDER_WITH_TRL]

Two workloads of 8 x 8: single calls as the demo has them, and longer ones. float32 on both sides, then
bfloat16 on both (TRL autocasts over float32 weights, its default; ours are bfloat16 weights over float32
masters). Writes OUTDIR/trl_speed.json after every part; a part that fails leaves its error there. Under four
minutes on one H200. See `tests/benchmarks/trl_peer` for what is compared.
"""

import argparse
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.trl_peer import Workload, compare, ratios
from tests.gpu.engine_speed import model_folder

DEMO = Workload(prompts=8, attempts=8, shared=220, own=80, new=48, updates=4)
LONG = Workload(prompts=8, attempts=8, shared=220, own=780, new=256, updates=4)


def measure(folder: Path, out: Path, site: Path) -> dict[str, Any]:
    def part(work: Workload, *, exact: bool, micros: tuple[int, ...], budgets: tuple[int, ...]) -> Any:
        found = compare(
            folder,
            work,
            "cuda",
            micros,
            exact=exact,
            budgets=budgets,
            packings=("tree", "flat", "rows"),
            site=site,
        )
        return {**found, "ratios": ratios(found, "clock")}

    parts: dict[str, Callable[[], Any]] = {
        "demo rows, float32": lambda: part(DEMO, exact=True, micros=(16, 64), budgets=(768, 4096)),
        "demo rows, bfloat16": lambda: part(DEMO, exact=False, micros=(64,), budgets=(768, 4096)),
        "long rows, float32": lambda: part(LONG, exact=True, micros=(8,), budgets=(768, 4096, 8192)),
        "long rows, bfloat16": lambda: part(LONG, exact=False, micros=(16,), budgets=(768, 4096, 8192)),
    }
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, work in parts.items():
        started = time.perf_counter()
        try:
            found[name] = work()
        except Exception:
            found[name] = {"error": traceback.format_exc()[-3000:]}
        found[f"{name}: seconds"] = round(time.perf_counter() - started, 1)
        (out / "trl_speed.json").write_text(json.dumps(found, indent=1))
        said = found[name].get("ratios", found[name].get("error"))
        print(f"{name} ({found[f'{name}: seconds']} s): {json.dumps(said)}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="The embedded trainer beside TRL's GRPO on one GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, help="default: the default model, if it is there")
    parser.add_argument("--site", type=Path, default=Path(".cache/trl-site"), help="folder that has trl")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    measure(model_folder(options.model, options.out), options.out, options.site.absolute())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
