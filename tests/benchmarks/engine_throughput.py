"""Generated tokens per second of the embedded engine against transformers' `generate` on the same model.

`python -m tests.benchmarks.engine_throughput [--sequences 1 8 32 64] [--model DIR]`. Prompts of 300 tokens
share their first 220, as the prompts of one harness do; each gets 32 new tokens at temperature 1. Seconds are
end to end, prompts included, in one process and the same run, so that the ratio holds on any machine.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from broker.engine.default_model import DEFAULT_MODEL, find_model
from broker.engine.engine import EmbeddedEngine
from broker.model import Sampling

SHARED, OWN, NEW = 220, 80, 32


def make_prompts(count: int, vocabulary: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(0)
    common = torch.randint(100, vocabulary, (SHARED,), generator=generator).tolist()
    return [
        (*common, *torch.randint(100, vocabulary, (OWN,), generator=generator).tolist()) for _ in range(count)
    ]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _serve(engine: EmbeddedEngine, prompts: list[tuple[int, ...]]) -> Callable[[], object]:
    def work() -> None:
        futures = [
            engine.submit(prompt, Sampling(temperature=1.0, seed=seed, max_tokens=NEW))
            for seed, prompt in enumerate(prompts)
        ]
        for future in futures:
            future.result()

    return work


def _generate(model: Any, prompts: list[tuple[int, ...]]) -> Callable[[], object]:
    ids = torch.tensor(prompts, device=model.device)
    options = {
        "max_new_tokens": NEW,
        "min_new_tokens": NEW,
        "do_sample": True,
        "top_k": 0,
        "temperature": 1.0,
    }
    return lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options)


def _engine(folder: Path, slots: int, *, share: bool = True, exact: bool = True) -> EmbeddedEngine:
    engine = EmbeddedEngine(folder, max_batch=slots, share_prefixes=share, exact=exact)
    # Every run generates the same number of tokens.
    object.__setattr__(engine.geometry, "stop_ids", frozenset[int]())
    return engine


def _measure_engine(
    name: str, folder: Path, batches: list[list[tuple[int, ...]]], *, share: bool = True, exact: bool = True
) -> list[float]:
    """Rates with an empty prefix cache (returned), and again with the prompts in it."""
    engine = _engine(folder, max(len(batch) for batch in batches), share=share, exact=exact)
    _serve(engine, batches[0])()  # warm up
    cold: list[float] = []
    warm: list[float] = []
    for batch in batches:
        engine.pause()
        engine.resume()  # drops the prefix cache
        for rates in (cold, warm):
            rates.append(len(batch) * NEW / _seconds(_serve(engine, batch)))
    engine.close()
    _print(name, cold)
    if share:
        _print(f"{name}, prompts seen before", warm)
    return cold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--cache", type=Path, default=Path(".cache"))
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 64])
    arguments = parser.parse_args()
    folder = find_model(arguments.model, arguments.cache)
    engine = _engine(folder, 1)
    dtype, device, vocabulary = engine.model.dtype, engine.device, engine.geometry.vocabulary
    engine.close()
    print(f"tokens/s end to end, {SHARED}+{OWN} prompt tokens, {NEW} new")
    print(f"{device}, {torch.get_num_threads()} threads, {dtype}")
    _print("sequences", [float(count) for count in arguments.sequences])
    batches = [make_prompts(count, vocabulary) for count in arguments.sequences]
    served = _measure_engine("engine", folder, batches)
    _measure_engine("engine, prefixes not shared", folder, batches, share=False)
    if device.type == "cpu":
        _measure_engine("engine, bfloat16 products", folder, batches, exact=False)
    torch.set_float32_matmul_precision("highest")
    peer: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    _generate(peer, batches[0])()  # warm up
    generated = [len(batch) * NEW / _seconds(_generate(peer, batch)) for batch in batches]
    _print("transformers generate", generated)
    _print("engine / generate", [ours / theirs for ours, theirs in zip(served, generated, strict=True)])


def _print(name: str, values: list[float]) -> None:
    print(f"{name:50}" + "".join(f"{value:9.1f}" for value in values), flush=True)


if __name__ == "__main__":
    main()
