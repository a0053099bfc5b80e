"""Another trainer's export becomes one of ours: a new folder, each change named (EXP-01, EXP-03).

SkyRL's export, for one, lacks the chat template, has float32 weights whatever the config said, writes a tied
output layer a second time, and used to name its architecture after the FSDP wrapper. What training cannot
have changed is taken from the base: configs, tokenizer, template. What contradicts the base is refused, for
nobody knows what such weights were trained under. The export found is never changed. Must not know which
trainer wrote it.
"""

# safetensors and torch annotate these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import BaseModel, ConfigDict
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from catalog.digest import canonical_json
from rl.acceptance import chat_template_text
from rl.errors import ExportRefused, TrainingError
from rl.export import carry_over, seal, staged, target_dtype
from rl.job_spec import ExportDtype
from rl.manifest import Manifest, architecture_of, read_config
from rl.weights import INDEX, WEIGHTS, check_layout, read_tensors, tensor_names, weight_files

_WRAPPER: Final = "FSDP"
_HEAD: Final = "lm_head.weight"
_EMBEDDING: Final = "model.embed_tokens.weight"


class Repaired(BaseModel):
    """A finished repair."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: Manifest
    repairs: tuple[str, ...]
    """What was changed, one line each; empty when the export needed nothing."""


def repair_export(found: Path, base_dir: Path, out_dir: Path, *, dtype: ExportDtype = "base") -> Repaired:
    """Write `found` anew as `out_dir`, whole or not at all, with weights in `dtype`.

    Raises `ExportRefused` for an export that is not the base's kind of model, and `TrainingError` when a
    folder is none or `out_dir` exists. Whether the weights were trained is `rl.acceptance`'s question.
    """
    repairs = [*_judge_config(found, base_dir), *_judge_template(found, base_dir)]
    repairs += _judge_tokenizer(found, base_dir)
    check_layout(found)
    with staged(out_dir) as staging:
        wanted = target_dtype(base_dir, dtype)
        repairs += _write_weights(found, staging, wanted, tied=_is_tied(base_dir))
        carry_over(base_dir, staging, wanted)
        if (found / "generation_config.json").exists() and not (base_dir / "generation_config.json").exists():
            (staging / "generation_config.json").write_bytes((found / "generation_config.json").read_bytes())
        return Repaired(manifest=seal(staging), repairs=tuple(repairs))


def _judge_config(found: Path, base_dir: Path) -> list[str]:
    name, wanted = architecture_of(read_config(found)), architecture_of(read_config(base_dir))
    if name == wanted:
        return []
    if name.removeprefix(_WRAPPER) != wanted:
        raise ExportRefused("architecture", f"the base is {wanted}, the export {name or 'names none'}")
    return [f"config.json: architecture {name} -> {wanted}"]


def _judge_template(found: Path, base_dir: Path) -> list[str]:
    template, wanted = chat_template_text(found), chat_template_text(base_dir)
    if wanted is None:
        raise TrainingError(f"the base {base_dir} has no chat template: add chat_template.jinja")
    if template is None:
        return ["the base's chat template added"]
    if template != wanted:
        raise ExportRefused("chat_template", f"{found} has another chat template than the base")
    return []


def _judge_tokenizer(found: Path, base_dir: Path) -> list[str]:
    """The same tokenizer, however it is written down: its vocabulary, merges and steps are compared."""
    path = found / "tokenizer.json"
    if not path.exists():
        return ["the base's tokenizer added"]
    if _tokenizer(path) != _tokenizer(base_dir / "tokenizer.json"):
        raise ExportRefused("tokenizer", f"{path} is another tokenizer than the base's")
    return []


def _tokenizer(path: Path) -> Mapping[str, Any]:
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises the bare class
        raise ExportRefused("tokenizer", f"{path} is not a tokenizer: {error}") from error
    # A saved tokenizer may carry padding or truncation of its last use.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    # It adds special tokens where it is asked to, which the host never does; transformers adds an empty one.
    parts.pop("post_processor", None)
    return parts


def _is_tied(base_dir: Path) -> bool:
    """The base keeps no output layer of its own: its embedding is used for that."""
    names = {name for path in weight_files(base_dir) for name in tensor_names(path)}
    return bool(read_config(base_dir).get("tie_word_embeddings")) and _HEAD not in names


def _write_weights(found: Path, staging: Path, dtype: str, *, tied: bool) -> list[str]:
    """File by file, so that only one shard is ever in memory."""
    target: torch.dtype = getattr(torch, dtype)
    dtypes: set[str] = set()
    places: dict[str, str] = {}
    head: Tensor | None = None
    embedding: Tensor | None = None
    size = 0
    for path in weight_files(found):
        shard: dict[str, Tensor] = {}
        for name, value in read_tensors(path):
            if tied and name == _HEAD:
                head = value
                continue
            if tied and name == _EMBEDDING:
                embedding = value
            if value.is_floating_point() and value.dtype != target:
                dtypes.add(str(value.dtype).removeprefix("torch."))
                value = value.to(target)
            shard[name] = value
            places[name] = path.name
            size += value.numel() * value.element_size()
        if shard:
            save_file(shard, staging / path.name, metadata={"format": "pt"})
    if set(places.values()) != {WEIGHTS}:
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (staging / INDEX).write_bytes(canonical_json(index))
    return [*_untied(head, embedding), *(f"weights: {name} -> {dtype}" for name in sorted(dtypes))]


def _untied(head: Tensor | None, embedding: Tensor | None) -> list[str]:
    if head is None:
        return []
    if embedding is None or not torch.equal(head, embedding):
        raise ExportRefused(
            "architecture", f"the base ties {_HEAD} to {_EMBEDDING}, the export has another of its own"
        )
    return [f"weights: {_HEAD} left out, it is {_EMBEDDING} once more"]
