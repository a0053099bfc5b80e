"""The embedded trainer on the 4 B model, and its variants."""

# torch and transformers are annotated only in part:
# pyright: basic

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any

import torch
import transformers

from rl.contract import RlContract
from rl.embedded import kernels
from rl.embedded.fitting import Fit
from rl.embedded.layout import one_by_one, recurrent_mixers
from rl.embedded.passes import input_length
from rl.embedded.trainer import Trainer
from rl.rows import Row
from tests.gpu import rows_4b
from tests.gpu.bench_4b import Bench
from tests.gpu.model_4b import PEAK, build, flops


class Ours:
    """The embedded trainer and its variants, on one model whose optimiser state is in place."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.model = build(bench.device, bench.shape, bench.dtype)
        self.count = sum(value.numel() for value in self.model.parameters())
        self.budget = 160 if bench.tiny else 8_192
        started = time.perf_counter()
        self.trainer = Trainer(self.model, RlContract(), packing="flat", token_budget=self.budget)
        print(f"trainer: {self.trainer.packing}, {time.perf_counter() - started:.0f} s", flush=True)
        self.fit = self.trainer.passes._fit
        self.way = {"way": self.trainer.packing, "patches": len(self.fit.patches)}

    def describe(self) -> dict[str, Any]:
        footprint = self.trainer.passes.footprint()
        return {
            "parameters": self.count,
            **self.way,
            "kernels": _kernel_versions(),
            "transformers": transformers.__version__,
            "rows": len(self.bench.rows),
            "tokens": sum(map(input_length, self.bench.rows)),
            "completion_tokens": sum(row.trainable for row in self.bench.rows),
            "growing_rows": len(self.bench.growing),
            "growing_tokens": sum(map(input_length, self.bench.growing)),
            "longest": max(map(input_length, self.bench.rows)),
            "kept_mb_a_token": round(footprint.plain / 1e6, 3),
            "kept_mb_a_token_checkpointed": round(footprint.kept / 1e6, 3),
        }

    @contextmanager
    def settings(
        self, *, budget: int | None = None, checkpointing: Any = "auto", fit: Fit | None = None
    ) -> Generator[None]:
        passes = self.trainer.passes
        passes.token_budget = budget or self.budget
        passes.checkpointing = checkpointing
        passes._footprint = None
        passes._fit = fit or self.fit
        try:
            yield
        finally:
            passes.token_budget, passes.checkpointing, passes._fit = self.budget, "auto", self.fit
            self.trainer.optimiser.end()

    def score(self, rows: Sequence[Row]) -> tuple[list[list[float]], float]:
        found, seconds = self.trainer.score(rows_4b.batch(rows))
        return [values.tolist() for values in found], seconds

    def update(self, rows: Sequence[Row], *, repeat: int = 2, **settings: Any) -> dict[str, Any]:
        """The same update `repeat` times; the numbers are of the last (kernels are compiled in the first)."""
        repeat = 1 if self.bench.tiny else repeat
        with self.settings(**settings):
            logprobs, seconds_score = self.score(rows)
            batch = rows_4b.batch(rows, logprobs)
            found: dict[str, Any] = {}
            first, gap = 0.0, None
            for number in range(repeat):
                self.bench.sync(reset=True)
                started = time.perf_counter()
                sums = self.trainer.accumulate(batch)
                self.bench.sync()
                computed = time.perf_counter()
                norm = float(self.trainer.optimiser.clip())
                self.trainer.optimiser.step()
                self.trainer.optimiser.end()
                self.bench.sync()
                ended = time.perf_counter()
                first = first or ended - started
                print(f"  update {number + 1}: {ended - started:.1f} s", flush=True)
                numbers = sums.read()
                gap = numbers["logprob_gap_mean"] if gap is None else gap
                found = {
                    "seconds": round(ended - started, 3),
                    "seconds_score": round(seconds_score, 3),
                    "seconds_passes": round(computed - started, 3),
                    "seconds_step": round(ended - computed, 3),
                    "first_update_seconds": round(first, 1),
                    "computed_tokens": sums.computed,
                    "plain_tokens": sums.plain,
                    "trained_tokens": sums.tokens,
                    "micro_batches": sums.micro_batches,
                    "checkpointed_layers": sums.checkpointed_layers,
                    "tokens_per_second": sums.computed / (ended - started),
                    "plain_tokens_per_second": sums.plain / (ended - started),
                    "gradient_norm": norm,
                    "gap_score_update": gap,
                    "entropy": numbers["entropy"],
                }
                if number + 1 < repeat:
                    # The score pass again, now that its kernels are compiled.
                    _, seconds_score = self.score(rows)
        needed, done = flops(self.model, rows)
        shared = found["computed_tokens"] / found["plain_tokens"]
        found["share_6n"] = needed * shared / found["seconds"] / PEAK
        found["share_done"] = done / found["seconds"] / PEAK if shared == 1 else 0.0
        found["notes"] = (
            f"{found['checkpointed_layers']} layers checkpointed, passes {found['seconds_passes']:.2f} s, "
            f"step {found['seconds_step']:.2f} s, score {found['seconds_score']:.2f} s"
        )
        return found

    def compare(self) -> None:
        """Without some of the kernels: each of these tunes kernels of its own."""
        rows, fit = self.bench.rows, self.fit_with
        self.bench.run("more: 12k packs", lambda: self.update(rows, budget=self.budget * 3 // 2))
        self.bench.run("more: delta net kernels", lambda: self.update(rows, fit=fit(norms=False, mlp=False)))
        self.bench.run(
            "more: transformers' layers",
            lambda: self.update(rows, fit=fit(delta_net=False, norms=False, mlp=False)),
        )

    def fit_with(self, **chosen: Any) -> Fit:
        patches = kernels.fused(self.model, **chosen)
        replaced = {id(module) for module, _ in patches}
        others = [one_by_one(mixer) for mixer in recurrent_mixers(self.model) or ()]
        return Fit("flat", (*patches, *(patch for patch in others if id(patch[0]) not in replaced)))

    def profile(self) -> dict[str, Any]:
        """One full pass under torch's profiler: the kernels that take the time, into a file."""
        rows = rows_4b.of_length(
            [self.budget // 4 - 7] * 4, completion=self.budget // 16, vocabulary=self.bench.vocabulary, seed=7
        )
        batch = rows_4b.batch(rows)
        with self.settings():
            self.trainer.accumulate(batch)
            self.trainer.optimiser.end()
            activities = [torch.profiler.ProfilerActivity.CPU]
            if not self.bench.tiny:
                activities = [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profiler:
                self.trainer.accumulate(batch)
                self.bench.sync()
        key = "self_cpu_time_total" if self.bench.tiny else "self_device_time_total"
        text = profiler.key_averages().table(sort_by=key, row_limit=45, max_name_column_width=90)
        (self.bench.out / "profile.txt").write_text(text)
        events = sorted(profiler.key_averages(), key=lambda event: -getattr(event, key))
        total = sum(getattr(event, key) for event in events)
        top = {event.key[:60]: round(getattr(event, key) / total, 3) for event in events[:14]}
        return {"device_ms": round(total / 1e3, 1), "top": top}


def _kernel_versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("flash-linear-attention", "fla-core", "tilelang", "triton"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
