"""The peer of `trl_peer`: TRL's GRPO on recorded rows, run from an environment of its own.

    python _trl_update.py JOB.json

A custom rollout function hands the recorded rows over at once, so that an update is what is timed: from its
return to the end of the optimiser's step. Then TRL generates from the same prompts as it would without one.
The last line of the output is the result as JSON. Needs trl, torch and transformers, and nothing of ours.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch
import transformers
import trl
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class Replay:
    """The rollout function: each prompt is the name of a group, whose next recorded attempt it gets."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows
        self.returned: list[tuple[float, float]] = []

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows:
            groups.setdefault(row["instance"], []).append(row)
        chosen = [groups[prompt].pop(0) for prompt in prompts]
        names = {"prompt_ids": "prompt_ids", "completion_ids": "completion_ids", "logprobs": "logprobs"}
        found = {name: [row[key] for row in chosen] for name, key in names.items()}
        found["recorded"] = [row["reward"] for row in chosen]
        self.returned.append(_now())
        return found


class Ends(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.at: list[tuple[float, float]] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.at.append(_now())


def _now() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def recorded_reward(recorded: list[float], **_: Any) -> list[float]:
    return recorded


def open_trainer(job: dict[str, Any], folder: str, replay: Replay, ends: Ends) -> Any:
    rows = job["rows"]
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=job["device"] == "cpu",
        bf16=job["bf16"],
        gradient_checkpointing=False,
        per_device_train_batch_size=job["micro_batch"],
        gradient_accumulation_steps=len(rows) // job["micro_batch"],
        num_generations=job["attempts"],
        max_completion_length=job["new"],
        max_steps=job["updates"],
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        weight_decay=0.01,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        beta=0.0,
        epsilon=0.2,
        loss_type="dapo",
        temperature=1.0,
        shuffle_dataset=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        generation_kwargs={"min_new_tokens": job["new"]},
    )
    instances = list(dict.fromkeys(row["instance"] for row in rows))
    model = transformers.AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=config,
        reward_funcs=recorded_reward,
        train_dataset=Dataset.from_dict({"prompt": instances}),
        rollout_func=replay,
        callbacks=[ends],
    )


def generation_rates(trainer: Any, job: dict[str, Any]) -> dict[str, float]:
    """Tokens a second, by the clock and by processor time; the second of two runs."""
    prompts = [row["prompt_ids"] for row in job["rows"]]
    rates: dict[str, float] = {}
    for _ in range(2):
        started = _now()
        ids, _logprobs = trainer._generate_single_turn(prompts, None, {}, job["attempts"])
        ended = _now()
        tokens = sum(map(len, ids))
        rates = {
            "tokens": tokens,
            "per_second": tokens / (ended[0] - started[0]),
            "per_cpu_second": tokens / (ended[1] - started[1]),
        }
    return rates


def main(path: str) -> int:
    job: dict[str, Any] = json.loads(Path(path).read_text())
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    replay, ends = Replay(job["rows"]), Ends()
    with tempfile.TemporaryDirectory() as folder:
        trainer = open_trainer(job, folder, replay, ends)
        generated = generation_rates(trainer, job)
        trainer.train()
    spans = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(replay.returned, ends.at, strict=True)]
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    peak = torch.cuda.max_memory_allocated() if job["device"] == "cuda" else 0
    versions = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    result = {"spans": spans, "gradient_norms": norms, "generate": generated, "peak_bytes": peak}
    print(json.dumps({**result, **versions}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
