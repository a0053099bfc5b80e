"""The panel of an export that SkyRL made: what its engine says last, and what its own files score (EXP-03).

The trainer's weights live in Ray workers and compute in bfloat16, so the float32 scores are of the folder
that the trainer wrote, before it was repaired: the repaired export must reproduce them exactly. What ties
that folder to the trainer's live weights is the engine, which got those by weight sync and says something of
its own, which is compared with the weights rounded to its type (`rl.panel`). Must not know Ray.
"""

# transformers annotates these only in part:
# pyright: reportUnknownMemberType=false

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
import transformers
from torch import nn

from broker.broker import Broker
from broker.engine.loading import choose_device
from broker.model import Completion, Sampling
from rl.panel import PANEL_TOKENS, SPOKEN_TOKENS, Panel, add_spoken, make_panel, score_narrow
from rl.skyrl.model import SkyrlModel

Ids = tuple[int, ...]
_DTYPES: Final = {"auto": "bfloat16", "bf16": "bfloat16", "half": "float16", "fp16": "float16"}


def panel_prompts(broker: Broker, count: int) -> tuple[Ids, ...]:
    """Train prompts as the model sees them: sharp distributions show a wrong weight best."""
    limit = min(PANEL_TOKENS, broker.budgets.context_tokens - SPOKEN_TOKENS)
    return tuple(
        broker.template.encode([{"role": "user", "content": task.prompt}])[:limit]
        for task in broker.release.split("train")[:count]
    )


async def hear(model: SkyrlModel, prompts: Sequence[Ids]) -> tuple[Completion, ...]:
    """What the engine says to each prompt. The model must be open."""
    said = [
        model.complete(prompt, Sampling(temperature=1.0, seed=number, max_tokens=SPOKEN_TOKENS))
        for number, prompt in enumerate(prompts)
    ]
    return tuple(await asyncio.gather(*said))


def score_export(
    policy: Path,
    prompts: Sequence[Ids],
    said: Sequence[Completion],
    *,
    dtype: str,
    engine_dtype: str,
    device: Literal["auto", "cpu", "cuda"],
) -> Panel:
    """The panel by the weights in `policy`, SkyRL's own folder. `dtype`: of the export made from it."""
    torch.set_float32_matmul_precision("highest")
    model = _load(policy, device)
    panel = make_panel(model, prompts, dtype)
    heard = add_spoken(panel, prompts, said, model)
    spoken_in = _DTYPES.get(engine_dtype, engine_dtype)
    if spoken_in == "float32":
        return heard
    return heard.model_copy(update={"narrow": score_narrow(model, prompts, said, spoken_in)})


def _load(policy: Path, device: Literal["auto", "cpu", "cuda"]) -> nn.Module:
    transformers.logging.disable_progress_bar()
    model: Any = cast("Any", transformers).AutoModelForCausalLM.from_pretrained(
        policy, dtype=torch.float32, local_files_only=True
    )
    return cast("nn.Module", model.to(choose_device(device))).eval()
