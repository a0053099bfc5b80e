"""The bookkeeping of the 4 B scripts: what is run under a deadline, its numbers, the file and the table.

Knows no trainer: a variant is a function that gives numbers by name.
"""

# torch and transformers are annotated only in part:
# pyright: basic

import gc
import json
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.gpu import rows_4b
from tests.gpu.model_4b import config


class Bench:
    """Runs variants, keeps their numbers."""

    file = "train_4b.json"

    def __init__(self, out: Path, *, tiny: bool, minutes: float, only: Sequence[str], tokens: int) -> None:
        self.tiny = tiny
        self.only = only
        self.device = torch.device("cpu" if tiny else "cuda")
        self.dtype = torch.float32 if tiny else torch.bfloat16
        self.deadline = time.perf_counter() + minutes * 60
        self.results: dict[str, dict[str, Any]] = {}
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        self.shape = config(tiny)
        self.vocabulary = int(self.shape.vocab_size)
        scale = 0.02 if tiny else 1.0
        self.limit = 160 if tiny else 8_192
        whole = rows_4b.episodes(
            4 if tiny else 64, limit=self.limit, vocabulary=self.vocabulary, seed=1, scale=scale
        )
        self.growing = whole
        self.rows = rows_4b.apart(whole, tokens=400 if tiny else tokens, vocabulary=self.vocabulary, seed=2)
        lengths = [200, 150] if tiny else [24_576, 20_000, 24_576, 16_384]
        self.long = rows_4b.of_length(
            lengths, completion=60 if tiny else 4_096, vocabulary=self.vocabulary, seed=3
        )

    def run(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        if self.only and not any(name.startswith(prefix) for prefix in self.only):
            return
        if time.perf_counter() > self.deadline:
            self.note(name, {"skipped": "no time left"})
            return
        # Where it stands, should it be slow: kernels that are tuned say nothing.
        print(f"{name} begins", flush=True)
        started = time.perf_counter()
        self.sync(reset=True)
        found: dict[str, Any]
        try:
            found = work()
        except Exception as error:  # one variant's failure must not lose the others
            (self.out / f"{name.replace(' ', '_')}.txt").write_text(traceback.format_exc())
            found = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        found["peak_gib"] = round(self.peak(), 1)
        found["seconds_in_all"] = round(time.perf_counter() - started, 1)
        self.note(name, found)
        gc.collect()
        if not self.tiny:
            torch.cuda.empty_cache()

    def note(self, name: str, found: dict[str, Any]) -> None:
        self.results[name] = found
        print(name, json.dumps(found), flush=True)
        (self.out / self.file).write_text(json.dumps(self.results, indent=1))

    def sync(self, *, reset: bool = False) -> None:
        if not self.tiny:
            torch.cuda.synchronize()
            if reset:
                torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float:
        return 0.0 if self.tiny else torch.cuda.max_memory_allocated() / 2**30

    def table(self) -> None:
        print(f"\n{'variant':34} {'tok/s':>8} {'6N/790T':>8} {'done/790T':>9} {'s':>7} {'GiB':>6}  notes")
        for name, found in self.results.items():
            shares = f"{found.get('share_6n', 0.0):8.1%} {found.get('share_done', 0.0):9.1%}"
            print(
                f"{name:34} {found.get('tokens_per_second', 0.0):8.0f} {shares} "
                f"{found.get('seconds', 0.0):7.2f} {found.get('peak_gib', 0.0):6.1f}  "
                f"{found.get('error') or found.get('skipped') or found.get('notes', '')}"
            )


def machine() -> dict[str, Any]:
    """The card as it is found."""
    if not torch.cuda.is_available():
        return {"torch": torch.__version__}
    query = "--query-gpu=name,clocks.sm,temperature.gpu,power.draw,memory.used"
    state = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True)
    left, right = (torch.randn(8_192, 8_192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    for _ in range(5):
        torch.matmul(left, right)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(30):
        torch.matmul(left, right)
    torch.cuda.synchronize()
    rate = 30 * 2 * 8_192**3 / (time.perf_counter() - started)
    return {"torch": torch.__version__, "card": state.stdout.strip(), "bf16_tflops": round(rate / 1e12)}
