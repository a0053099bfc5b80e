"""The end of a phase: the export, and the panel that proves that trainer, engine and export are one policy.

Owns the precision of what is published: the weights in float32, whatever the model computed in. Must not know
updates or episodes.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from broker.engine.engine import EmbeddedEngine
from rl.embedded.memory import return_memory
from rl.export import write_export
from rl.job_spec import EXPORT, Job
from rl.manifest import Manifest
from rl.panel import Panel, add_spoken, ask_engine, hear_engine, make_panel, score_narrow


def publish(
    job: Job, engine: EmbeddedEngine, prompts: Sequence[tuple[int, ...]], masters: Mapping[str, Tensor]
) -> tuple[Manifest, Panel]:
    """Write the export and score `prompts`. Leaves the engine paused, its weights rounded to the export's.

    `masters`: the weights in float32 of a model that computes in less; empty for a float32 model.
    Raises `TrainingError`.
    """
    export = job.folder / EXPORT
    if masters:
        return _publish_masters(job, engine, prompts, masters)
    engine.pause()
    return_memory()
    manifest = write_export(engine.model, job.base_model, export, dtype=job.export_dtype)
    panel = make_panel(engine.model, prompts, manifest.dtype)
    engine.resume()
    panel = hear_engine(panel, engine, engine.model, longest=engine.max_length)
    engine.pause()
    return manifest, panel


def _publish_masters(
    job: Job, engine: EmbeddedEngine, prompts: Sequence[tuple[int, ...]], masters: Mapping[str, Tensor]
) -> tuple[Manifest, Panel]:
    """The engine speaks first, in its own precision; then its module gets the masters and serves no more."""
    spoken = str(next(engine.model.parameters()).dtype).removeprefix("torch.")
    heard, said = ask_engine(engine, prompts, longest=engine.max_length)
    engine.pause()
    return_memory()
    narrow = score_narrow(engine.model, heard, said, spoken)
    widen(engine.model, masters)
    manifest = write_export(engine.model, job.base_model, job.folder / EXPORT, dtype=job.export_dtype)
    panel = add_spoken(make_panel(engine.model, prompts, manifest.dtype), heard, said, engine.model)
    return manifest, panel.model_copy(update={"narrow": narrow})


@torch.no_grad()
def widen(model: nn.Module, masters: Mapping[str, Tensor]) -> None:
    """Give the model the masters themselves as its weights; no second copy is made."""
    for name, value in model.named_parameters():
        value.data = masters[name]
    model.float()
