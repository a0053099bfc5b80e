"""The rows of `tests.gpu.train_4b` through SkyRL's trainer and its FSDP policy worker, on one GPU.

    python -m tests.gpu.train_4b_skyrl OUT [--minutes 2.5] [--tokens 160000] [--tuning 50] [--tiny]

Same random model, rows that share nothing, numbers and keys; OUT/train_4b_skyrl.json is written after every
part, and a part that fails loses only itself. SkyRL's own trainer makes the padded tensors, asks for the
log-probabilities and runs the update; only Ray between it and its worker is left out, so that the figures
are the worker's. Options are those of `rl.skyrl.mapping` on a machine without flash-attn, the worker is
`rl.skyrl.worker`'s, weights and AdamW state are float32, products bfloat16, every layer is checkpointed.

The longest row comes first, so that any part of the rows is padded as all of them are, and as many are taken
as fit into the time. A padded row's time does not depend on its length, so that the file also estimates the
speed of the whole batch. Kernels of flash-linear-attention are tuned in the first pass, unless Triton's cache
has them from `tests.gpu.train_4b OUT --only peer` on the same machine. After `--tuning` seconds a kernel that
is left chooses among its first three configurations only; the file says how many did.

`--tiny` runs the same code on a CPU, where what asks for a GPU is told that it is the CPU. Rehearsed so with
SkyRL 0.3.0 and 0.4.0, in the environment that `./run test` makes for the contract tests:
`.cache/contract-venv/bin/python -m tests.gpu.train_4b_skyrl OUT --tiny`.
"""

# SkyRL is not installed where types are checked, and torch is annotated only in part:
# pyright: basic, reportMissingImports=false

# ruff: noqa: E402

import time

STARTED = time.perf_counter()

import argparse
import contextlib
import gc
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("LOG_LEVEL", "WARNING")
# Before torch, as the embedded trainer's script has it.
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import torch

from rl.rows import Row
from tests.gpu.bench_4b import Bench, machine
from tests.gpu.model_4b import PEAK
from tests.gpu.skyrl_direct import (
    DirectDispatch,
    configuration,
    generated,
    one_process,
    open_worker,
    trainer_of,
)

SHORT = 4_096
"""Rows up to this length are tried when the longest do not fit into memory."""
RESERVE = 6.0
"""Seconds that are kept for the end."""
OPTIONS = ("flash_attn", "remove_microbatch_padding", "logprobs_chunk_size", "max_tokens_per_microbatch")
"""SkyRL's settings that matter here, for the file."""
VERSIONS = (
    *("torch", "transformers", "skyrl", "ray", "triton"),
    *("flash-attn", "flash-linear-attention", "fla-core", "tilelang"),
)
SHARE = 0.65
"""Of the time that is left when the first measurement begins: what that may take."""


class PeerBench(Bench):
    """With a file of its own: both scripts may write into one folder."""

    file = "train_4b_skyrl.json"

    def left(self) -> float:
        return self.deadline - time.perf_counter()


class Peer:
    """SkyRL's trainer and worker, and what is asked of them."""

    def __init__(self, bench: PeerBench, tuning: float) -> None:
        self.bench, self.tuning = bench, tuning
        longest = max(bench.rows, key=_length)
        self.rows = [longest, *(row for row in bench.rows if row is not longest)]
        self.folder = bench.out / "model"
        bench.shape.save_pretrained(self.folder)
        self.config = configuration(self.folder)
        self.worker: Any = None
        self.row_seconds = 0.0
        """Of a padded row, scored and trained; 0 before a warm-up."""
        self.parameters = 0

    def open(self) -> dict[str, Any]:
        """The worker with new weights, as SkyRL's worker group starts one; an earlier one is let go."""
        self.close()
        started = time.perf_counter()
        worker = open_worker(self.config, self.folder, self.bench.device)
        self.bench.sync()
        self.worker = worker
        model = worker.model.model
        self.parameters = sum(value.numel() for value in model.parameters())
        return {
            "parameters": self.parameters,
            "weights": sorted({str(value.dtype) for value in model.parameters()}),
            "attention": model.config._attn_implementation,
            "options": {name: getattr(worker.cfg, name) for name in OPTIONS},
            "checkpointing": model.is_gradient_checkpointing,
            "seconds": round(time.perf_counter() - started, 1),
            "seconds_since_start": round(time.perf_counter() - STARTED, 1),
            "rows": len(self.rows),
            "tokens": sum(map(_length, self.rows)),
            "longest": max(map(_length, self.rows)),
            "versions": _versions(),
        }

    def close(self) -> None:
        self.worker, self.row_seconds = None, 0.0
        gc.collect()
        if not self.bench.tiny:
            torch.cuda.empty_cache()

    def warm_up(self, size: int, *, tuning: float) -> dict[str, Any]:
        """Two micro-batches for the kernels and the optimiser's state, then three, timed."""
        started = time.perf_counter()
        with tuned_for(tuning) as tuned:
            # The first is without padding, for which attention may have another kernel.
            self.update(self.rows[: 2 * size], size)
        first = time.perf_counter() - started
        found = self.update(self.rows[: 3 * size], size)
        self.row_seconds = (found["seconds_score"] + found["seconds"]) / found["rows"]
        return {**found, "first_update_seconds": round(first, 1), "tuned_kernels": dict(tuned)}

    def measure(self, size: int) -> dict[str, Any]:
        """An update on as many rows as the time allows, in micro-batches of `size` rows."""
        warm = {}
        share = SHARE if size == 1 else 1.0
        if size > 1:
            warm = self.warm_up(size, tuning=min(self.tuning, self.bench.left() / 3))
        fits = int(share * (self.bench.left() - RESERVE) / self.row_seconds)
        count = min(len(self.rows), max(2 * size, fits))
        found = self.update(self.rows[: count - count % size], size)
        first = warm.get("first_update_seconds")
        return found if first is None else {**found, "first_update_seconds": first}

    def update(self, rows: Sequence[Row], size: int) -> dict[str, Any]:
        """Log-probabilities, then one update, by SkyRL's trainer. Seconds are the worker's."""
        assert self.worker is not None, "no worker"
        trainer_config = self.config.trainer
        trainer_config.micro_train_batch_size_per_gpu = size
        trainer_config.micro_forward_batch_size_per_gpu = size
        trainer = trainer_of(self.config, DirectDispatch(self.worker, self.bench), len(rows))
        self.bench.sync(reset=True)
        output, uids = generated(rows)
        data = trainer.convert_to_training_input(output, uids)
        data = trainer.fwd_logprobs_values_reward(data)
        # As if the engine had been this model: the worker then reports how far both its passes are apart.
        data["rollout_logprobs"] = data["action_log_probs"]
        data = trainer.compute_advantages_and_returns(data)
        status = trainer.train_critic_and_policy(data)
        return self.describe(rows, size, data, trainer.dispatch.seconds, status)

    def describe(
        self, rows: Sequence[Row], size: int, data: Any, took: Mapping[str, float], status: dict[str, float]
    ) -> dict[str, Any]:
        tokens, padded = sum(map(_length, rows)), data["sequences"].numel()
        seconds = took["passes"] + took["step"]
        needed = 6.0 * self.parameters / seconds / PEAK
        whole = took["passes"] * len(self.rows) / len(rows) + took["step"]
        return {
            "rows": len(rows),
            "micro_batch": size,
            "padded_to": data["sequences"].shape[1],
            "computed_tokens": padded,
            "plain_tokens": tokens,
            "trained_tokens": int(data["loss_mask"].sum()),
            "seconds": round(seconds, 3),
            "seconds_score": round(took["score"], 3),
            "seconds_passes": round(took["passes"], 3),
            "seconds_step": round(took["step"], 3),
            "tokens_per_second": tokens / seconds,
            "padded_tokens_per_second": padded / seconds,
            "estimated_whole_batch_tokens_per_second": sum(map(_length, self.rows)) / whole,
            "score_tokens_per_second": tokens / took["score"],
            "share_6n": needed * tokens,
            "share_6n_padded": needed * padded,
            "gradient_norm": status["grad_norm"],
            "gap_score_update": status["minibatch_rollout_logprobs_abs_diff_mean"],
            "entropy": status["policy_entropy"],
            "notes": (
                f"micro-batch {size}, padded to {data['sequences'].shape[1]}, passes {took['passes']:.2f} s, "
                f"step {took['step']:.2f} s, score {took['score']:.2f} s"
            ),
        }

    def growing(self) -> dict[str, Any]:
        """The growing episodes, counted only: what SkyRL would compute, at the best speed measured."""
        rows = self.bench.growing
        padded = len(rows) * max(map(_length, rows))
        speed = max(
            (found.get("padded_tokens_per_second", 0.0) for found in self.bench.results.values()), default=0.0
        )
        return {
            "rows": len(rows),
            "plain_tokens": sum(map(_length, rows)),
            "computed_tokens": padded,
            "estimated_seconds": round(padded / speed, 1) if speed else None,
            "notes": "counted, not run; the seconds are estimated from the padded tokens' best speed",
        }


@contextmanager
def tuned_for(seconds: float) -> Iterator[Counter[str]]:
    """Triton's tuners look at three configurations only once `seconds` have passed; counts both kinds."""
    counts: Counter[str] = Counter()
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        yield counts
        return
    deadline = time.perf_counter() + seconds
    whole = Autotuner.prune_configs

    def prune(tuner: Any, *arguments: Any, **named: Any) -> list[Any]:
        found = list(whole(tuner, *arguments, **named))
        late = time.perf_counter() > deadline
        counts["first three" if late else "all"] += 1
        return found[:3] if late else found

    with mock.patch.object(Autotuner, "prune_configs", prune):
        yield counts


def _length(row: Row) -> int:
    return len(row.prompt_ids) + len(row.completion_ids)


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in VERSIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--minutes", type=float, default=2.5, help="from the script's start")
    parser.add_argument("--tokens", type=int, default=160_000, help="of the rows, at most")
    parser.add_argument("--tuning", type=float, default=50.0, help="seconds, then kernels choose among three")
    options = parser.parse_args()
    bench = PeerBench(options.out, tiny=options.tiny, minutes=options.minutes, only=(), tokens=options.tokens)
    bench.deadline = STARTED + options.minutes * 60
    bench.note("machine", {**machine(), "seconds_since_start": round(time.perf_counter() - STARTED, 1)})
    with one_process(options.tiny):
        peer = Peer(bench, options.tuning)
        _measure(bench, peer)
        if not any(name.startswith("rows") and "seconds" in found for name, found in bench.results.items()):
            # A pass that ran out of memory leaves FSDP's modules half way, hence a new worker.
            limit = max(map(_length, peer.rows)) // 2 if options.tiny else SHORT
            peer.rows = [row for row in peer.rows if _length(row) <= limit]
            _measure(bench, peer, f", up to {limit}")
        bench.run("64 growing episodes", peer.growing)
        peer.close()
    bench.table()


def _measure(bench: PeerBench, peer: Peer, suffix: str = "") -> None:
    bench.run(f"build{suffix}", peer.open)
    bench.run(f"warm-up{suffix}", lambda: peer.warm_up(1, tuning=peer.tuning))
    if not peer.row_seconds:
        return
    first = f"rows, micro-batch 1{suffix}"
    bench.run(first, lambda: peer.measure(1))
    if "seconds" not in bench.results[first]:
        return
    if bench.tiny or bench.left() > 20 + RESERVE:
        bench.run(f"rows, micro-batch 2{suffix}", lambda: peer.measure(2))
    else:
        bench.note(f"rows, micro-batch 2{suffix}", {"skipped": f"{bench.left():.0f} s left"})


if __name__ == "__main__":
    main()
