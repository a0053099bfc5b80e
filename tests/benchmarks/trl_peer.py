"""Update and generation of the embedded trainer beside TRL's GRPO on the same rows.

    python -m tests.benchmarks.trl_peer [--prompts 4] [--attempts 4] [--micro 4 ...]

The engine generates one completion an attempt; half of each group is rewarded. Both trainers get these
rows, the same loss (token mean, clip 0.2, no KL) and the same AdamW, in float32 without gradient
checkpointing; that the gradient has the same norm shows that it is the same update. A row's tokens are prompt
and completion, whether they are shared or padded. TRL takes the best of the given micro-batches. Limits: 1.5
times its tokens a second on the update, and no slower on generation. Ratios are of processor time on a CPU,
which other work on the machine moves least, and of the clock on a GPU. TRL runs from `.cache/trl-site`, which
`./run bench` makes; one attempt must be one sequence there, so the rows are single calls, its best case.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from broker.engine.default_model import DEFAULT_MODEL, find_model
from broker.engine.engine import EmbeddedEngine
from broker.model import Sampling
from rl.contract import RlContract
from rl.embedded.trainer import Trainer
from rl.errors import TrainingError
from rl.rows import Row, RowBatch, TrajectoryId

SITE = Path(__file__).parents[2] / ".cache/trl-site"
PEER = Path(__file__).with_name("_trl_update.py")
UPDATE_LIMIT, GENERATE_LIMIT = 1.5, 1.0
LEARNING_RATE = 1e-7
"""So small that the same rows stay on-policy for another update."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Prompts of a harness: `shared` tokens are those of all, `own` of the task."""

    prompts: int
    attempts: int
    shared: int
    own: int
    new: int
    updates: int = 2
    """The first one only warms up."""


@dataclass(frozen=True)
class Rate:
    """Tokens a second."""

    clock: float
    cpu: float


def prompts(work: Workload, vocabulary: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> list[int]:
        return torch.randint(100, vocabulary, (count,), generator=generator).tolist()

    common = draw(work.shared)
    return [(*common, *draw(work.own)) for _ in range(work.prompts)]


def generate(engine: EmbeddedEngine, work: Workload) -> tuple[list[Row], Rate]:
    """Rows of one batch, and the second run's rate with nothing cached."""
    wanted = [
        (number, repetition, prompt)
        for number, prompt in enumerate(prompts(work, engine.geometry.vocabulary))
        for repetition in range(work.attempts)
    ]
    rows: list[Row] = []
    rate = Rate(0, 0)
    for _ in range(2):
        engine.pause()  # all of them form one batch; what was cached is dropped
        futures = [
            engine.submit(
                prompt, Sampling(temperature=1.0, seed=1000 * number + repetition, max_tokens=work.new)
            )
            for number, repetition, prompt in wanted
        ]
        clock, cpu = time.perf_counter(), time.process_time()
        engine.resume()
        done = [future.result() for future in futures]
        tokens = sum(len(each.token_ids) for each in done)
        rate = Rate(tokens / (time.perf_counter() - clock), tokens / (time.process_time() - cpu))
        rows = [
            Row(
                prompt_ids=prompt,
                completion_ids=each.token_ids,
                rollout_logprobs=each.logprobs,
                loss_mask=(1,) * len(each.token_ids),
                rewards=(*(0.0,) * (len(each.token_ids) - 1), float(repetition % 2)),
                trajectory=TrajectoryId(str(number), repetition),
                is_last=True,
            )
            for (number, repetition, prompt), each in zip(wanted, done, strict=True)
        ]
    return rows, rate


def update(engine: EmbeddedEngine, batch: RowBatch, updates: int, **options: Any) -> tuple[Rate, list[float]]:
    """Row tokens a second of the updates after the first, and every gradient norm."""
    trainer = Trainer(engine.model, RlContract(learning_rate=LEARNING_RATE), **options)
    tokens = row_tokens(batch.rows)
    norms: list[float] = []
    clock = cpu = 0.0
    for number in range(updates):
        started = time.perf_counter(), time.process_time()
        norms.append(trainer.step(batch).gradient_norm)
        if engine.device.type == "cuda":
            torch.cuda.synchronize()
        if number:
            clock += time.perf_counter() - started[0]
            cpu += time.process_time() - started[1]
    del trainer
    gc.collect()
    return Rate((updates - 1) * tokens / clock, (updates - 1) * tokens / cpu), norms


def row_tokens(rows: Sequence[Row]) -> int:
    return sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)


def theirs(
    folder: Path, rows: Sequence[Row], work: Workload, micro: int, device: str, *, bf16: bool, site: Path
) -> dict[str, Any]:
    """What the peer's own process says of itself."""
    job = {
        "model": str(folder.absolute()),
        "device": device,
        "bf16": bf16,
        "threads": torch.get_num_threads() if device == "cpu" else 0,
        "micro_batch": micro,
        "attempts": work.attempts,
        "new": work.new,
        "updates": work.updates,
        "learning_rate": LEARNING_RATE,
        "rows": [
            {
                "instance": row.trajectory.instance,
                "prompt_ids": row.prompt_ids,
                "completion_ids": row.completion_ids,
                "logprobs": row.rollout_logprobs,
                "reward": sum(row.rewards),
            }
            for row in rows
        ],
    }
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "job.json"
        path.write_text(json.dumps(job))
        search = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, str(PEER), str(path)],
            env={**os.environ, "PYTHONPATH": search},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the peer ended with status {done.returncode}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def their_rate(result: dict[str, Any], tokens: int) -> Rate:
    spans = result["spans"][1:]
    return Rate(*(len(spans) * tokens / sum(span[index] for span in spans) for index in (0, 1)))


def compare(
    folder: Path,
    work: Workload,
    device: Any,
    micros: Sequence[int],
    *,
    exact: bool = True,
    budgets: Sequence[int] = (768,),
    packings: Sequence[str] = ("tree", "rows"),
    site: Path = SITE,
) -> dict[str, Any]:
    """All numbers of one workload. `exact=False`: bfloat16 on both sides, float32 masters in ours."""
    engine = EmbeddedEngine(
        folder, device=device, max_batch=work.prompts * work.attempts, max_length=2048, exact=exact
    )
    # Every run generates the same number of tokens.
    object.__setattr__(engine.geometry, "stop_ids", frozenset[int]())
    found: dict[str, Any] = {"workload": vars(work), "load": os.getloadavg()[0]}
    try:
        rows, generated = generate(engine, work)
        tokens = row_tokens(rows)
        found |= {"row tokens": tokens, "generate": vars(generated), "ours": {}, "theirs": {}}
        engine.pause()
        batch = RowBatch(
            rows=tuple(rows), attempts=work.attempts, zero_call_episodes=0, silent_prompts=(), lost_prompts=()
        )
        for packing in packings:
            for budget in budgets if packing == "tree" else budgets[:1]:
                name = f"{packing} {budget}"
                try:
                    rate, norms = update(engine, batch, work.updates, packing=packing, token_budget=budget)
                except (TrainingError, RuntimeError) as error:  # one setting; the others are measured
                    found["ours"][name] = {"error": str(error)[:500]}
                else:
                    found["ours"][name] = {**vars(rate), "gradient norms": norms}
        if device == "cuda":
            found["our peak bytes"] = torch.cuda.max_memory_allocated()
    finally:
        engine.close()
    del engine
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    for micro in micros:
        try:
            result = theirs(folder, rows, work, micro, device, bf16=not exact, site=site)
        except RuntimeError as error:
            found["theirs"][str(micro)] = {"error": str(error)}
            continue
        rate = their_rate(result, tokens)
        found["theirs"][str(micro)] = {**vars(rate), **result}
    return found


def ratios(found: dict[str, Any], clock: str) -> dict[str, float]:
    """Our best packing against their best micro-batch, and the engine against their generation."""
    others = [result for result in found["theirs"].values() if clock in result]
    if not others:
        return {}
    named = {"clock": "per_second", "cpu": "per_cpu_second"}[clock]
    best = max(result[clock] for result in others)
    ours = {name: result[clock] / best for name, result in found["ours"].items() if clock in result}
    return {
        **{f"update, {name}": value for name, value in ours.items()},
        "generate": found["generate"][clock] / max(result["generate"][named] for result in others),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--cache", type=Path, default=Path(".cache"))
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--attempts", type=int, default=4)
    parser.add_argument("--shared", type=int, default=220)
    parser.add_argument("--own", type=int, default=80)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--micro", type=int, nargs="+", default=[4])
    parser.add_argument("--site", type=Path, default=SITE, help="folder that has trl")
    options: Any = parser.parse_args()
    if not (options.site / "trl").is_dir():
        print(f"not measured: no trl in {options.site}; ./run bench makes it", file=sys.stderr)
        return 0
    work = Workload(
        prompts=options.prompts,
        attempts=options.attempts,
        shared=options.shared,
        own=options.own,
        new=options.new,
    )
    folder = find_model(options.model, options.cache)
    print(f"load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads; {work}")
    found = compare(folder, work, "cpu", options.micro, site=options.site)
    for side in ("ours", "theirs"):
        for name, result in found[side].items():
            said = result.get("gradient norms") or result.get("gradient_norms")
            rate = f"{result['clock']:8.1f} tokens/s, {result['cpu']:8.1f} a CPU second" if said else result
            print(f"update, {side}, {name:10} {rate}; gradient norms {said}")
    print(f"generate, ours: {found['generate']}")
    print(f"generate, theirs: {[result.get('generate') for result in found['theirs'].values()]}")
    for name, value in ratios(found, "cpu").items():
        limit = GENERATE_LIMIT if name == "generate" else UPDATE_LIMIT
        print(f"ratio, {name}: {value:.2f} (limit {limit})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
