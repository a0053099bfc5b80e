"""The embedded engine on a GPU beside transformers' continuous batching and vLLM, on the same prompts.

    python -m tests.gpu.engine_speed OUTDIR [--model DIR]

Writes OUTDIR/engine_speed.json after every part and prints a table at the end; a part that fails leaves its
error there and the others go on. Every rate is warm: the same prompts a second time in the same process.
Without the default model, random weights of its shape are used. Under four minutes on one H200.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from broker.engine import static
from broker.engine.default_model import DEFAULT_MODEL, find_model
from broker.engine.engine import EmbeddedEngine
from broker.errors import ModelUnavailable
from broker.model import Completion, Sampling

TINY_MODEL = Path(__file__).parents[1] / "fixtures/tiny_model"
SHARED, OWN, NEW = 220, 80, 256
SIZES = (1, 16, 64, 256)
VLLM_SECONDS = 200.0
SHAPE = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1_536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8_192,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
DEVICE: Any = "cuda"
Prompts = list[list[int]]


def prompts(count: int, vocabulary: int) -> Prompts:
    generator = torch.Generator().manual_seed(0)
    common = torch.randint(100, vocabulary, (SHARED,), generator=generator).tolist()
    return [
        [*common, *torch.randint(100, vocabulary, (OWN,), generator=generator).tolist()] for _ in range(count)
    ]


def random_model(folder: Path) -> Path:
    """Random weights of the default model's shape, with the tokenizer of the tests' tiny model."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).to(torch.bfloat16)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(TINY_MODEL / name, folder / name)
    return folder


def model_folder(named: Path | None, out: Path) -> Path:
    """What was named, else the default model, else random weights of its shape."""
    if named is not None:
        return named
    try:
        return find_model(DEFAULT_MODEL, Path(".cache"))
    except ModelUnavailable as error:
        print(f"random weights: {error}")
        return random_model(out / "random-model")


def open_engine(folder: Path, decode: Any, *, exact: bool, slots: int) -> EmbeddedEngine:
    engine = EmbeddedEngine(
        folder, device=DEVICE, max_batch=slots, max_length=1024, exact=exact, decode=decode
    )
    # Every run generates the same number of tokens.
    object.__setattr__(engine.geometry, "stop_ids", frozenset[int]())
    return engine


def serve(
    engine: EmbeddedEngine, batch: Prompts, temperature: float = 1.0, new: int = NEW
) -> list[Completion]:
    engine.pause()  # so that all of them form one batch, and nothing cached before is used
    futures = [
        engine.submit(prompt, Sampling(temperature=temperature, seed=seed, max_tokens=new))
        for seed, prompt in enumerate(batch)
    ]
    engine.resume()
    return [future.result() for future in futures]


def warm_rate(work: Callable[[], object], tokens: int) -> float:
    work()
    started = time.perf_counter()
    work()
    return tokens / (time.perf_counter() - started)


def engine_rates(folder: Path, vocabulary: int, decode: str, *, exact: bool, sizes: Sequence[int]) -> Any:
    """Tokens a second end to end, and the share of it that the first token of all prompts takes."""
    engine = open_engine(folder, decode, exact=exact, slots=max(sizes))
    try:
        found: dict[str, Any] = {}
        for size in sizes:
            batch = prompts(size, vocabulary)
            found[str(size)] = warm_rate(lambda batch=batch: serve(engine, batch), size * NEW)
            found[f"{size} first tokens, s"] = size / warm_rate(
                lambda batch=batch: serve(engine, batch, new=1), size
            )
        return {**found, "graphs": engine.stats()["graphs"]}
    finally:
        engine.close()


def burst_rates(folder: Path, vocabulary: int) -> Any:
    """What steps without the host are worth, at 64 sequences."""
    found: dict[str, float] = {}
    kept = static.BURST
    for burst in (1, 4, 8, 16):
        static.BURST = burst  # type: ignore[misc]
        engine = open_engine(folder, "static", exact=True, slots=64)
        batch = prompts(64, vocabulary)
        found[str(burst)] = warm_rate(lambda e=engine, b=batch: serve(e, b), 64 * NEW)
        engine.close()
    static.BURST = kept  # type: ignore[misc]
    return found


@torch.no_grad()
def trainer_gap(model: Any, batch: Prompts, completions: Sequence[Completion]) -> float:
    """Largest difference to the log-probabilities of the module's ordinary forward pass."""
    worst = 0.0
    for prompt, completion in zip(batch, completions, strict=True):
        ids = torch.tensor([[*prompt, *completion.token_ids]], device=DEVICE)
        scores = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
        chosen = scores[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()
        worst = max(worst, float((chosen - torch.tensor(completion.logprobs)).abs().max()))
    return worst


def correctness(folder: Path, vocabulary: int) -> Any:
    """Graphs against the plain path and the trainer's pass; then the weights are stepped in place."""
    batch = prompts(24, vocabulary)
    plain, graphs = (open_engine(folder, kind, exact=True, slots=24) for kind in ("plain", "static"))
    found: dict[str, Any] = {}
    try:
        for temperature in (0.0, 1.0):
            one, other = (serve(engine, batch, temperature, 64) for engine in (plain, graphs))
            same = [a.token_ids == b.token_ids for a, b in zip(one, other, strict=True)]
            gaps = [
                max(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True))
                for a, b, equal in zip(one, other, same, strict=True)
                if equal
            ]
            found[f"T={temperature}"] = {
                "sequences with the same tokens": f"{sum(same)}/{len(same)}",
                "largest log-probability gap of those": max(gaps, default=None),
                "graphs to the trainer's pass": trainer_gap(graphs.model, batch, other),
                "plain to the trainer's pass": trainer_gap(plain.model, batch, one),
            }
        captured = graphs.stats()["graphs"]
        graphs.pause()
        before = trainer_gap(graphs.model, batch, other)
        with torch.no_grad():
            for parameter in graphs.model.parameters():
                parameter.add_(0.02 * parameter.std() * torch.randn_like(parameter))
        stale = trainer_gap(graphs.model, batch, other)
        graphs.resume()
        after = trainer_gap(graphs.model, batch, serve(graphs, batch, 1.0, 64))
        found["weights stepped in place"] = {
            "gap before": before,
            "old completions under new weights": stale,
            "new completions under new weights": after,
            "graphs captured again": graphs.stats()["graphs"] - captured,
        }
        return found
    finally:
        plain.close()
        graphs.close()


def profile(folder: Path, vocabulary: int) -> Any:
    """The kernels of 32 tokens at 64 sequences, by time."""
    engine = open_engine(folder, "static", exact=True, slots=64)
    batch = prompts(64, vocabulary)
    try:
        serve(engine, batch, new=32)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
            serve(engine, batch, new=32)
            torch.cuda.synchronize()
        events: list[Any] = sorted(
            profiled.key_averages(), key=lambda event: -getattr(event, "self_device_time_total", 0.0)
        )
        return {
            "device ms": sum(event.self_device_time_total for event in events) / 1000,
            "kernels": sum(event.count for event in events),
            "most": [
                {"ms": event.self_device_time_total / 1000, "count": event.count, "name": event.key[:90]}
                for event in events[:18]
            ],
        }
    finally:
        engine.close()


def continuous_batching(folder: Path, vocabulary: int, sizes: Sequence[int]) -> Any:
    """transformers' own, in bfloat16 as it prefers; its log-probabilities asked for, as ours are given."""
    api: Any = transformers
    model = api.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda()
    generation = api.GenerationConfig(
        max_new_tokens=NEW,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=-1,
        pad_token_id=0,
    )
    found: dict[str, float] = {}
    for size in sizes:
        batch = prompts(size, vocabulary)

        def work(batch: Prompts = batch) -> None:
            options = api.ContinuousBatchingConfig(return_logprobs=True)
            done = model.generate_batch(
                batch, generation_config=generation, continuous_batching_config=options
            )
            assert sum(len(each.generated_tokens) for each in done.values()) == len(batch) * NEW

        found[str(size)] = warm_rate(work, size * NEW)
    return found


def vllm(folder: Path, out: Path, sizes: Sequence[int]) -> Any:
    """In a process of its own, after ours gave the device back."""
    command = [sys.executable, "-m", "tests.gpu.engine_speed", str(out), "--model", str(folder), "--vllm"]
    done = subprocess.run(
        [*command, *map(str, sizes)], capture_output=True, text=True, timeout=VLLM_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-2500:])
    return json.loads((out / "vllm.json").read_text())


def vllm_process(folder: Path, out: Path, sizes: Sequence[int]) -> None:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    llm = LLM(
        str(folder),
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=256,
        skip_tokenizer_init=True,
        gpu_memory_utilization=0.5,
    )
    sampling = SamplingParams(temperature=1.0, max_tokens=NEW, ignore_eos=True, logprobs=0, detokenize=False)
    found: dict[str, Any] = {}
    for size in sizes:
        inputs = [{"prompt_token_ids": ids} for ids in prompts(size, vocabulary)]
        found[str(size)] = warm_rate(
            lambda inputs=inputs: llm.generate(inputs, sampling, use_tqdm=False), size * NEW
        )
        (out / "vllm.json").write_text(json.dumps(found))


def measure(folder: Path, out: Path, wanted: Sequence[str]) -> dict[str, Any]:
    vocabulary = int(json.loads((folder / "config.json").read_text())["vocab_size"])
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "workload": f"{SHARED} shared and {OWN} own prompt tokens, {NEW} new, temperature 1",
    }
    parts: dict[str, Callable[[], Any]] = {
        "correctness": lambda: correctness(folder, vocabulary),
        "graphs, float32": lambda: engine_rates(folder, vocabulary, "static", exact=True, sizes=SIZES),
        "graphs, bfloat16": lambda: engine_rates(folder, vocabulary, "static", exact=False, sizes=SIZES),
        "burst, float32 at 64": lambda: burst_rates(folder, vocabulary),
        "profile": lambda: profile(folder, vocabulary),
        "vllm, bfloat16": lambda: vllm(folder, out, SIZES),
        "plain, float32": lambda: engine_rates(folder, vocabulary, "plain", exact=True, sizes=(1, 64)),
        "continuous batching, bfloat16": lambda: continuous_batching(folder, vocabulary, (64, 256)),
    }
    chosen = {name: part for name, part in parts.items() if not wanted or name.startswith(tuple(wanted))}
    for name, part in chosen.items():
        started = time.perf_counter()
        try:
            found[name] = part()
        except Exception:
            found[name] = {"error": traceback.format_exc()[-3000:]}
        found[f"{name}: seconds"] = round(time.perf_counter() - started, 1)
        torch.cuda.empty_cache()
        (out / "engine_speed.json").write_text(json.dumps(found, indent=1))
        print(name, json.dumps(found[name])[:1500], flush=True)
    return found


def table(found: dict[str, Any]) -> str:
    kinds = [
        "plain, float32",
        "graphs, float32",
        "graphs, bfloat16",
        "continuous batching, bfloat16",
        "vllm, bfloat16",
    ]
    lines = [f"{'tokens/s':34}" + "".join(f"{size:>10}" for size in SIZES)]
    for kind in kinds:
        rates = [found.get(kind, {}).get(str(size)) for size in SIZES]
        lines.append(f"{kind:34}" + "".join(f"{rate:10.0f}" if rate else f"{'-':>10}" for rate in rates))
    theirs = found.get("vllm, bfloat16", {}).get("64")
    for kind in kinds[1:3]:
        ours = found.get(kind, {}).get("64")
        if ours and theirs:
            lines.append(f"{kind} / vllm at 64: {ours / theirs:.2f} (limit 0.5)")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="The embedded engine on a GPU beside its peers.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, help="default: the default model, if it is there")
    parser.add_argument("--parts", nargs="+", default=[], help="beginnings of the parts' names; default all")
    parser.add_argument("--vllm", type=int, nargs="+", help="only this peer, at these sizes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    folder = model_folder(options.model, options.out)
    if options.vllm:
        vllm_process(folder, options.out, options.vllm)
        return 0
    print(table(measure(folder, options.out, options.parts)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
