"""The embedded engine beside transformers' own continuous batching on the same prompts.

    python -m tests.benchmarks.engine_peers [--sequences 8 32] [--model DIR]

Prompts of 300 tokens share their first 220; each gets 32 new tokens at temperature 1 with its
log-probabilities, which both give. float32, one process, the same run; the second run of each counts, ours
with nothing cached. Its pages are measured at two sizes, its best counts. Ratios are of processor time, which
other work on the machine moves least; the clock stands beside. The limit: at least as fast. The peer asks
psutil how much memory a CPU has; it is taken from `.cache/trl-site`, which `./run bench` makes. vLLM and a
GPU are measured by `tests/gpu/engine_speed`.
"""

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before transformers, which looks for psutil when it is imported.
sys.path.append(str(Path(__file__).parents[2] / ".cache/trl-site"))

import torch
import transformers

from broker.engine.default_model import DEFAULT_MODEL, find_model
from broker.engine.engine import EmbeddedEngine
from broker.model import Sampling
from tests.benchmarks.engine_throughput import NEW, make_prompts

LIMIT = 1.0
PAGES = (32, 256)
"""Tokens a page: a small one, and its default."""
_BLOCKS = 1 << 14
"""Tokens of its cache, more than the prompts and answers of 48 sequences. 0.75 GB a copy in float32."""
Prompts = list[tuple[int, ...]]


def rates(work: Callable[[], int]) -> tuple[float, float]:
    """Tokens a second and tokens a CPU second of the second run."""
    work()
    clock, cpu = time.perf_counter(), time.process_time()
    tokens = work()
    return tokens / (time.perf_counter() - clock), tokens / (time.process_time() - cpu)


def ours(engine: EmbeddedEngine, batch: Prompts) -> int:
    engine.pause()  # drops what is cached; all of them form one batch
    futures = [
        engine.submit(prompt, Sampling(temperature=1.0, seed=seed, max_tokens=NEW))
        for seed, prompt in enumerate(batch)
    ]
    engine.resume()
    return sum(len(future.result().logprobs) for future in futures)


def theirs(model: Any, batch: Prompts, page: int) -> int:
    api: Any = transformers
    generation = api.GenerationConfig(
        max_new_tokens=NEW,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=-1,
        pad_token_id=0,
    )
    # It would take nine tenths of the memory for its cache, and the machine's other programs with it.
    options = api.ContinuousBatchingConfig(page_size=page, return_logprobs=True, num_blocks=_BLOCKS // page)
    done = model.generate_batch(
        [list(prompt) for prompt in batch], generation_config=generation, continuous_batching_config=options
    )
    return sum(len(each.logprobs) for each in done.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--cache", type=Path, default=Path(".cache"))
    parser.add_argument("--sequences", type=int, nargs="+", default=[8, 32])
    options = parser.parse_args()
    if importlib.util.find_spec("psutil") is None:
        print("not measured: no psutil; ./run bench makes it", file=sys.stderr)
        return 0
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = find_model(options.model, options.cache)
    print(f"load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads, float32, {NEW} new tokens each")
    engine = EmbeddedEngine(folder, device="cpu", max_batch=max(options.sequences))
    # Every run generates the same number of tokens.
    object.__setattr__(engine.geometry, "stop_ids", frozenset[int]())
    peer: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for count in options.sequences:
        batch = make_prompts(count, engine.geometry.vocabulary)
        # One after the other for each size, so that the machine's load is about the same.
        clock, cpu = rates(lambda batch=batch: ours(engine, batch))
        found = {page: rates(lambda batch=batch, page=page: theirs(peer, batch, page)) for page in PAGES}
        print(f"{count:4} sequences, engine: {clock:7.1f} tokens/s, {cpu:7.1f} a CPU second")
        for page, (rate, each) in found.items():
            print(f"     transformers, pages of {page:3}: {rate:7.1f} tokens/s, {each:7.1f} a CPU second")
        ratio = cpu / max(each for _, each in found.values())
        by_clock = clock / max(rate for rate, _ in found.values())
        print(
            f"     ratio {ratio:.2f} by processor time, {by_clock:.2f} by the clock (limit {LIMIT})",
            flush=True,
        )
    engine.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
