"""The checks that make an export a model, as far as files and weights can show (EXP-03).

Each check raises `ExportRefused` with its own reason. The checks that need episodes are in `rl.validate`.
Must not know how the export was made.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false

import json
from pathlib import Path
from typing import Any

import torch

from rl.errors import ExportRefused, TrainingError
from rl.manifest import (
    MANIFEST,
    Manifest,
    carried_files,
    describe_folder,
    dtype_of,
    read_config,
    read_manifest,
)
from rl.weights import check_layout, tensors

_TOLD_APART = {"dtype", "torch_dtype"}
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


def check_export(export_dir: Path, base_dir: Path, *, dtype: str = "base") -> Manifest:
    """All file and weight checks, cheapest first. `dtype` is the expected one, or the base's."""
    manifest = read_manifest(export_dir)
    check_manifest(export_dir, manifest)
    check_config(export_dir, base_dir, dtype)
    check_tokenizer(export_dir, base_dir)
    check_weights(export_dir, base_dir)
    return manifest


def check_manifest(export_dir: Path, manifest: Manifest) -> None:
    """The folder holds exactly the files of its manifest, byte for byte."""
    try:
        found = describe_folder(export_dir)
    except TrainingError as error:
        raise ExportRefused("manifest", str(error)) from error
    names = sorted(manifest.files.keys() ^ ({path.name for path in export_dir.iterdir()} - {MANIFEST}))
    changed = sorted(name for name in manifest.files if manifest.files[name] != found.files.get(name))
    if names or changed or manifest != found:
        what = ", ".join(dict.fromkeys(names + changed)) or "architecture or dtype"
        raise ExportRefused("manifest", f"{export_dir} does not match its manifest at: {what}")


def check_config(export_dir: Path, base_dir: Path, dtype: str) -> None:
    """The architecture is the base's, by its name and its numbers, and the dtype is the agreed one."""
    exported, base = read_config(export_dir), read_config(base_dir)
    if exported.get("architectures") != base.get("architectures"):
        raise ExportRefused(
            "architecture",
            f"the base is {base.get('architectures')}, the export {exported.get('architectures')}",
        )
    fields = sorted((exported.keys() | base.keys()) - _TOLD_APART)
    if other := [name for name in fields if exported.get(name) != base.get(name)]:
        raise ExportRefused(
            "architecture",
            f"config.json: {other[0]} is {exported.get(other[0])!r}, the base has {base.get(other[0])!r}",
        )
    wanted = dtype_of(base) if dtype == "base" else dtype
    if dtype_of(exported) != wanted:
        raise ExportRefused("dtype", f"expected {wanted}, the export's config says {dtype_of(exported)}")


def chat_template_text(folder: Path) -> str | None:
    """The chat template's source, wherever the folder keeps it."""
    for name in _TEMPLATE_FILES:
        if (folder / name).exists():
            return (folder / name).read_text()
    config = folder / "tokenizer_config.json"
    value: Any = json.loads(config.read_bytes()).get("chat_template") if config.exists() else None
    return value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True)


def check_tokenizer(export_dir: Path, base_dir: Path) -> None:
    """Every tokenizer file and the chat template equal the base's."""
    template = chat_template_text(export_dir)
    if template is None or template != chat_template_text(base_dir):
        word = "no chat template" if template is None else "another chat template than the base"
        raise ExportRefused("chat_template", f"{export_dir} has {word}")
    for path in carried_files(base_dir):
        # The two configs may differ: one in its dtype, the other where the base had none.
        if path.name in ("config.json", "generation_config.json"):
            continue
        other = export_dir / path.name
        if not other.exists() or other.read_bytes() != path.read_bytes():
            raise ExportRefused("tokenizer", f"{path.name} is missing or differs from the base's")


def check_weights(export_dir: Path, base_dir: Path) -> None:
    """Weights are readable, finite, of the base's shapes, of the config's dtype, and not the base's."""
    wanted = getattr(torch, dtype_of(read_config(export_dir)))
    check_layout(export_dir)
    base = dict(tensors(base_dir))
    names: set[str] = set()
    differs = False
    for name, tensor in tensors(export_dir):
        names.add(name)
        if name not in base or base[name].shape != tensor.shape:
            raise ExportRefused("architecture", f"the base has no {name} of shape {list(tensor.shape)}")
        if not tensor.is_floating_point():
            continue
        if tensor.dtype != wanted:
            raise ExportRefused("dtype", f"{name} is {tensor.dtype}, the config says {wanted}")
        if not bool(torch.isfinite(tensor).all()):
            raise ExportRefused("weights_not_finite", f"{name} holds infinity or NaN")
        differs = differs or not torch.equal(tensor, base[name].to(tensor.dtype))
    if names != base.keys():
        raise ExportRefused("architecture", f"tensors are missing: {sorted(base.keys() - names)[:3]}")
    if not differs:
        raise ExportRefused(
            "weights_equal_base",
            "no weight differs from the base: no update had a signal, or the learning rate is below what "
            f"{wanted} can hold; see the zero-variance groups in progress.jsonl",
        )
