"""Writing a trained model as a folder that anything can load (EXP-01).

Weights in the base's dtype; config, generation config, tokenizer files and chat template are the base's own
files, so the architecture name and the template cannot drift. Optimiser state is never written (RL-12). Must
not know how the model was trained.
"""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from catalog.digest import canonical_json
from rl.errors import TrainingError
from rl.job_spec import ExportDtype
from rl.manifest import MANIFEST, Manifest, carried_files, describe_folder, dtype_of, read_config

_MAXIMUM_SHARD = "4GB"


def write_export(model: Any, base_dir: Path, out_dir: Path, *, dtype: ExportDtype = "base") -> Manifest:
    """Write the model as `out_dir`, whole or not at all. Raises `TrainingError` if `out_dir` exists."""
    with staged(out_dir) as staging:
        wanted = target_dtype(base_dir, dtype)
        _write_weights(model, staging, wanted)
        # After the weights: `save_pretrained` writes a config of its own beside them.
        carry_over(base_dir, staging, wanted)
        if not (staging / "generation_config.json").exists():
            model.generation_config.save_pretrained(staging)
        return seal(staging)


@contextmanager
def staged(out_dir: Path) -> Generator[Path]:
    """A folder beside `out_dir` that becomes it when the body ends well, and vanishes when it does not."""
    if out_dir.exists():
        raise TrainingError(f"an export exists at {out_dir}: choose a new folder")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}-", dir=out_dir.parent))
    try:
        yield staging
        _sync(staging)
        staging.rename(out_dir)
    except BaseException as error:
        free, written = shutil.disk_usage(out_dir.parent).free, _size(staging)
        shutil.rmtree(staging, ignore_errors=True)
        # safetensors has an exception of its own for a disk that is full.
        if isinstance(error, (OSError, SafetensorError)):
            raise TrainingError(
                f"the export could not be written to {out_dir} ({error}): {written / 1e6:.1f} MB written, "
                f"{free / 1e6:.1f} MB are free; make room or choose another storage.root"
            ) from error
        raise


def target_dtype(base_dir: Path, dtype: ExportDtype) -> str:
    """The dtype of an export's weights by its name in torch."""
    return dtype_of(read_config(base_dir)) if dtype == "base" else dtype


def carry_over(base_dir: Path, staging: Path, dtype: str) -> None:
    """Copy the base's configs, tokenizer files and chat template; the config says `dtype`."""
    for path in carried_files(base_dir):
        shutil.copyfile(path, staging / path.name)
    config = read_config(base_dir)
    if dtype != dtype_of(config):
        # Some folders name it twice, for old and new readers: both must tell the truth.
        keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype"]
        (staging / "config.json").write_bytes(canonical_json({**config, **dict.fromkeys(keys, dtype)}))


def seal(folder: Path) -> Manifest:
    """Write the manifest of what the folder holds."""
    manifest = describe_folder(folder)
    (folder / MANIFEST).write_bytes(canonical_json(manifest.model_dump(mode="json")))
    return manifest


def _write_weights(model: Any, folder: Path, dtype: str) -> None:
    target = getattr(torch, dtype)
    state: dict[str, Tensor] = {}
    written: dict[tuple[int, torch.Size], Tensor] = {}
    for name, value in model.state_dict().items():
        # Tied weights must stay one tensor: transformers finds the tie by its memory.
        key = (value.data_ptr(), value.shape)
        if key not in written:
            written[key] = _plain(value, target)
        state[name] = written[key]
    model.save_pretrained(folder, state_dict=state, max_shard_size=_MAXIMUM_SHARD)


def _plain(value: Tensor, target: torch.dtype) -> Tensor:
    # The engine keeps projections column by column; safetensors wants rows.
    moved = value.detach().to("cpu", target if value.is_floating_point() else value.dtype)
    return moved.contiguous()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
