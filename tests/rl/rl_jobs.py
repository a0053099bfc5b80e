"""A small RL job on the tiny model: a program whose answer hangs on what the model samples."""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from broker.budgets import Budgets
from rl.contract import RlContract
from rl.job_spec import Job, ValidationJob
from tests.fixtures.episodes import TINY_MODEL, release, right_answer
from tests.fixtures.sandboxes import CACHE

# The model is random, so any half of its texts may be called right: that is contrast enough to train.
GUESS = """
KNOWN = {known}

def run(task, api):
    text = api.generate([{{"role": "user", "content": task["prompt"]}}])
    second = api.generate([
        {{"role": "user", "content": task["prompt"]}},
        {{"role": "assistant", "content": text}},
        {{"role": "user", "content": "Go on.", "source": "harness"}},
    ])
    right = sum(map(ord, text + second)) % 2 == 0
    api.submit(KNOWN[task["prompt"]] if right else "<answer>?</answer>")
"""
SILENT = "def run(task, api):\n    api.submit('<answer>A</answer>')\n"


@functools.cache
def base_model() -> Path:
    """The tiny model, whose turns end at a quarter of all ids: a random model never ends one otherwise."""
    folder = Path(tempfile.mkdtemp(prefix="rinr-base-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(TINY_MODEL, folder, dirs_exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(2, 130))}))
    weights = load_file(folder / "model.safetensors")
    for name, value in weights.items():
        # Louder layers: with tied embeddings a quiet random model only repeats the last token.
        if "down_proj" in name or "o_proj" in name:
            value *= 40
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@functools.cache
def guess() -> str:
    return GUESS.format(known={task.prompt: right_answer(task) for task in release().tasks})


def setup(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "harness_code": guess(),
        "release": str(release().root),
        "sandbox": "bubblewrap",
        "sandbox_packages": CACHE / "sandbox-packages",
        "runtime_cache": CACHE / "runtime",
        "sandbox_cache": CACHE,
        "budgets": Budgets(context_tokens=512, completion_tokens=32, user_turns=0),
        "guidance": "",
        "seed": 1,
        "concurrency": 8,
        "device": "cpu",
        "threads": 1,
        "folder": folder,
        **changes,
    }


def job(folder: Path, **changes: Any) -> Job:
    contract = RlContract(updates=2, prompts_per_batch=4, attempts=4, learning_rate=1e-3)
    fields = {"base_model": base_model(), "contract": contract, "cycle": 1, **changes}
    return Job(**{**setup(folder), **fields})


def validation(folder: Path, export: Path, panel: Path, **changes: Any) -> ValidationJob:
    return ValidationJob(
        **{**setup(folder), "export": export, "base_model": base_model(), "panel": panel, **changes}
    )
