"""vLLM, where it is installed, must load an export too and score the panel as the trainer does (EXP-03).

One half runs in a child process, `python -m rl.vllm_check EXPORT PANEL OUT`, whose end frees the GPU's
memory; the other starts it and judges what it left. Must not know episodes. Only the child imports vLLM.
"""

# vLLM is not installed where types are checked:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import contextlib
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from rl.errors import ExportRefused, TrainingError
from rl.job_spec import ValidationJob, VllmCheck
from rl.manifest import dtype_of, read_config
from rl.panel import PANEL_TOKENS, SPOKEN_TOKENS, read_panel
from rl.process import PARENT_VARIABLE, end_with_parent

VLLM_LOG: Final = "vllm.txt"
_SCORES: Final = "vllm.json"
_SECONDS: Final = 900.0
_LOG_LINES: Final = 5
_TOLERANCE: Final = {"float32": 0.02}
"""Mean absolute difference in log-probability to the trainer's float32; other precisions get 0.05. The exact
comparison is `rl.panel`'s: this one tells a model that vLLM reads as another one. vLLM 0.23 on an H200 was
0.0058 from a float32 export of SmolLM2-135M (docs/exports.md); other precisions were not measured."""
_ENVIRONMENT: Final = {
    # All in the one child, so that its end is the end of everything it holds.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Scores(BaseModel):
    """What the child leaves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    sequences: tuple[tuple[float, ...], ...]
    """Log-probability of each panel token but a sequence's first."""
    generated_tokens: int


def importable() -> bool:
    return importlib.util.find_spec("vllm") is not None


async def check(job: ValidationJob, seconds: float = _SECONDS) -> VllmCheck:
    """Raises `ExportRefused` for a model that vLLM reads otherwise, `TrainingError` when vLLM fails."""
    out, log = job.folder / _SCORES, job.folder / VLLM_LOG
    root = str(Path(__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "rl.vllm_check", str(job.export), str(job.panel), str(out)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": search, PARENT_VARIABLE: str(os.getpid())},
            process_group=0,
        )
    try:
        async with asyncio.timeout(seconds):
            await child.wait()
    except TimeoutError as error:
        raise TrainingError(f"vLLM did not score the export within {seconds:.0f} s{_advice(log)}") from error
    finally:
        # Whatever it started has its group, and must give the GPU back.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
    if child.returncode != 0 or not out.exists():
        raise TrainingError(f"vLLM ended with status {child.returncode}{_advice(log)}")
    return judge(job, Scores.model_validate_json(out.read_bytes()))


def judge(job: ValidationJob, scores: Scores) -> VllmCheck:
    """Compare with the trainer's scores of the rounded weights. Raises `ExportRefused`."""
    expected = read_panel(job.panel).rounded
    if [len(values) for values in scores.sequences] != [len(values) for values in expected]:
        raise ExportRefused("vllm", "vLLM did not score every token of the panel")
    gaps = [
        abs(one - other)
        for ours, theirs in zip(expected, scores.sequences, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    ]
    mean = sum(gaps) / max(len(gaps), 1)
    dtype = dtype_of(read_config(job.export))
    allowed = _TOLERANCE.get(dtype, 0.05)
    if not mean <= allowed:
        raise ExportRefused(
            "vllm",
            f"trainer and vLLM differ by {mean:.2g} in mean log-probability, allowed {allowed:g} in {dtype}",
        )
    if scores.generated_tokens == 0:
        raise ExportRefused("vllm", "vLLM generates nothing with the export")
    return VllmCheck(
        version=scores.version,
        mean_gap=mean,
        max_gap=max(gaps, default=0.0),
        generated_tokens=scores.generated_tokens,
    )


def _advice(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()[-_LOG_LINES:]
    end = " / ".join(lines) or "it wrote no log"
    return f": {end} (trainer.vllm=off leaves this check out; whole log: {log})"


def main(arguments: Sequence[str]) -> int:
    """The child: load with vLLM, score, say something, leave the scores."""
    end_with_parent()
    export, panel, out = map(Path, arguments)
    # By name, because it is no dependency: the check is for where it is.
    vllm: Any = importlib.import_module("vllm")
    engine = vllm.LLM(
        model=str(export),
        dtype=dtype_of(read_config(export)),
        max_model_len=PANEL_TOKENS + SPOKEN_TOKENS,
        max_num_seqs=8,
        gpu_memory_utilization=0.5,
        enforce_eager=True,
        enable_prefix_caching=False,
        seed=0,
    )
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=SPOKEN_TOKENS, prompt_logprobs=0)
    sequences = read_panel(panel).sequences
    answers = engine.generate([{"prompt_token_ids": list(ids)} for ids in sequences], sampling)
    scores = Scores(
        version=str(vllm.__version__),
        sequences=tuple(
            tuple(
                float(entry[token].logprob)
                for token, entry in zip(ids[1:], answer.prompt_logprobs[1:], strict=True)
            )
            for ids, answer in zip(sequences, answers, strict=True)
        ),
        generated_tokens=sum(len(answer.outputs[0].token_ids) for answer in answers),
    )
    out.write_text(scores.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
