"""The embedded trainer on a Qwen3.5-4B-shaped model with random weights, and a plain loop as its peer.

`python -m tests.gpu.train_4b OUT [--only NAME ...] [--minutes 8] [--tiny]`. Every variant writes a line of
the table and an entry of OUT/train_4b.json; one that fails loses only itself. `--only` takes beginnings of
variants' names; `more` are the slow comparisons. `--tiny` runs the same code on a CPU.
"""

import argparse
import faulthandler
import functools
import gc
import json
import os
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

# Before torch: packs differ in size, and fixed blocks would leave holes between them.
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import torch
import transformers
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

from rl.contract import RlContract
from rl.embedded import kernels
from rl.embedded.fitting import Fit
from rl.embedded.layout import flat_attention, one_by_one, recurrent_mixers
from rl.embedded.passes import input_length
from rl.embedded.patches import patched
from rl.embedded.scoring import row_logprobs, score_flat
from rl.embedded.trainer import Trainer
from rl.rows import Row
from tests.gpu import peer_4b, rows_4b

PEAK = 790e12
"""bf16 FLOP/s that one H200 reaches in a large product; 6N is held against it."""


def config(tiny: bool, layers: int = 32) -> Qwen3_5TextConfig:
    """The text model of Qwen3.5-4B: three gated delta nets to one full attention, 4.206 B parameters."""
    sizes: dict[str, Any] = {
        "vocab_size": 248_320,
        "hidden_size": 2_560,
        "intermediate_size": 9_216,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    }
    if tiny:
        sizes |= {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
        sizes |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        sizes |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    return Qwen3_5TextConfig(**sizes, max_position_embeddings=262_144, tie_word_embeddings=True)


def build(device: torch.device, shape: Qwen3_5TextConfig, dtype: torch.dtype) -> nn.Module:
    """Random weights, made on the device."""
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Qwen3_5ForCausalLM(shape).eval()
    finally:
        torch.set_default_dtype(before)


class Bench:
    """Runs variants, keeps their numbers."""

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
        started = time.perf_counter()
        self.sync(reset=True)
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
        (self.out / "train_4b.json").write_text(json.dumps(self.results, indent=1))

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


def flops(model: nn.Module, rows: Sequence[Row]) -> tuple[float, float]:
    """Of an update on rows that share nothing: 6N a token, and what must be done (causal attention at half,
    the head at completion tokens only, no recomputation)."""
    shape: Any = model.config
    parameters = sum(value.numel() for value in model.parameters())
    head = shape.vocab_size * shape.hidden_size
    tokens = sum(map(input_length, rows))
    full = sum(kind == "full_attention" for kind in shape.layer_types)
    width = shape.num_attention_heads * shape.head_dim
    attention = sum(6 * input_length(row) ** 2 * width * full for row in rows)
    done = 6 * (parameters - head) * tokens + 6 * head * sum(row.trainable for row in rows) + attention
    return 6.0 * parameters * tokens, float(done)


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
    ) -> Iterator[None]:
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

    def fit_with(self, **chosen: bool) -> Fit:
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


def check(bench: Bench) -> dict[str, Any]:
    """Packed and fused against one row at a time with torch's own functions in float32, on four layers.

    Relative errors of gradients, and of transformers' own path in the same precision for comparison.
    """
    lengths = [50, 20, 30] if bench.tiny else [700, 300, 520]
    rows = rows_4b.of_length(lengths, completion=30, vocabulary=bench.vocabulary, seed=5)
    shape = config(bench.tiny, layers=4)
    with _torch_functions():
        exact = build(bench.device, shape, torch.float32)
        reference, wanted = _by_rows(exact, rows)
        weights = {name: value.detach() for name, value in exact.state_dict().items()}
        del exact
    model = build(bench.device, shape, bench.dtype)
    model.load_state_dict(weights)
    plain, plain_gradients = _by_rows(model, rows)
    trainer = Trainer(model, RlContract(), packing="flat", token_budget=sum(lengths))
    (part,) = trainer.passes.plan(rows)
    assert part.pack is not None
    with patched(trainer.passes._fit.patches), flat_attention(model):
        scores = score_flat(model, part.pack, rows)
        scores.logprobs.sum().backward()
    sizes = [len(rows[member].completion_ids) for member in part.members]
    packed = dict(zip(part.members, scores.logprobs.detach().split(sizes), strict=True))
    ours = torch.cat([packed[index] for index in range(len(rows))])
    own_gradients = [value.grad for value in model.parameters()]
    return {
        "logprob_gap_ours": float((ours - reference).abs().mean()),
        "logprob_gap_plain": float((plain - reference).abs().mean()),
        "gradient_error_ours": _relative(own_gradients, wanted),
        "gradient_error_plain": _relative(plain_gradients, wanted),
        "patches": len(trainer.passes._fit.patches),
    }


def _by_rows(model: nn.Module, rows: Sequence[Row]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    values = []
    for row in rows:
        logprobs = row_logprobs(model, row)
        logprobs.sum().backward()
        values.append(logprobs.detach())
    gradients = [value.grad.float().clone() for value in model.parameters() if value.grad is not None]
    model.zero_grad(set_to_none=True)
    return torch.cat(values), gradients


def _relative(found: Sequence[Any], wanted: Sequence[torch.Tensor]) -> float:
    pairs = list(zip(found, wanted, strict=True))
    error = sum(float((left.float() - right).norm() ** 2) for left, right in pairs)
    return (error / sum(float(right.norm() ** 2) for right in wanted)) ** 0.5


@contextmanager
def _torch_functions() -> Iterator[None]:
    """transformers' torch implementations instead of the installed kernels."""
    module: Any = modeling_qwen3_5
    before = module.torch_chunk_gated_delta_rule
    module.torch_chunk_gated_delta_rule = getattr(before, "__wrapped__", before)
    try:
        yield
    finally:
        module.torch_chunk_gated_delta_rule = before


def machine() -> dict[str, Any]:
    """The card as it is found."""
    if not torch.cuda.is_available():
        return {"torch": torch.__version__}
    query = "--query-gpu=name,clocks.sm,temperature.gpu,power.draw,memory.used"
    state = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True)
    left, right = (torch.randn(8_192, 8_192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    for _ in range(5):
        left @ right
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(30):
        left @ right
    torch.cuda.synchronize()
    rate = 30 * 2 * 8_192**3 / (time.perf_counter() - started)
    return {"torch": torch.__version__, "card": state.stdout.strip(), "bf16_tflops": round(rate / 1e12)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of variants' names")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--tokens", type=int, default=160_000, help="of the rows that share nothing")
    options = parser.parse_args()
    bench = Bench(
        options.out, tiny=options.tiny, minutes=options.minutes, only=options.only, tokens=options.tokens
    )
    # Where it stands, should it be slow: kernels that are tuned say nothing.
    faulthandler.dump_traceback_later(100, repeat=True)
    bench.note("machine", machine())
    if not options.only or any(not name.startswith(("check", "peer")) for name in options.only):
        _ours(bench)
    for batch, length in ((4, 2_048), (1, 8_192)):
        bench.run(f"peer {batch} x {length}", functools.partial(_peer, bench, batch, length))
    bench.run("check", lambda: check(bench))
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
