"""What a model folder is made of: its files, their digests, its architecture and dtype.

Owns `manifest.json` and the list of files that an export takes over from its base. Needs no torch. Must not
know how weights are written or checked.
"""

import json
import re
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from catalog.digest import digest_file, digest_json
from rl.errors import ExportRefused, TrainingError

MANIFEST = "manifest.json"
_CARRIED = re.compile(
    r"(config|generation_config|tokenizer.*|special_tokens_map|added_tokens|vocab|chat_template)\.json"
    r"|chat_template\.jinja|merges\.txt|vocab\.txt|.*\.model|.*\.tiktoken"
)
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


class FileEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    size: int


class Manifest(BaseModel):
    """What an export says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    architecture: str
    dtype: str
    files: dict[str, FileEntry]

    @property
    def digest(self) -> str:
        """The identity of the exported model."""
        return digest_json(self.model_dump(mode="json"))


def read_config(folder: Path) -> dict[str, Any]:
    """A model folder's config.json. Raises `TrainingError`."""
    try:
        value = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise TrainingError(f"{folder} is no model folder: config.json: {error}") from error
    return cast("dict[str, Any]", value)


def architecture_of(config: dict[str, Any]) -> str:
    """The architecture's class name, e.g. `LlamaForCausalLM`; empty if the config names none."""
    names = cast("list[str]", config.get("architectures") or [""])
    return names[0]


def dtype_of(config: dict[str, Any]) -> str:
    """The weights' dtype as the config names it: newer folders say `dtype`, older ones `torch_dtype`."""
    return str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")


def carried_files(base_dir: Path) -> list[Path]:
    """Every file of the base that an export takes over as it is: configs, tokenizer, chat template."""
    return sorted(path for path in base_dir.iterdir() if path.is_file() and _CARRIED.fullmatch(path.name))


def describe_folder(folder: Path) -> Manifest:
    """The manifest that a folder's model files deserve; papers and notes beside them do not count."""
    config = read_config(folder)
    weights = [path for path in folder.iterdir() if path.is_file() and path.name.endswith(_WEIGHT_SUFFIXES)]
    names = sorted(path.name for path in [*carried_files(folder), *weights])
    return Manifest(
        architecture=architecture_of(config),
        dtype=dtype_of(config),
        files={
            name: FileEntry(digest=digest_file(folder / name), size=(folder / name).stat().st_size)
            for name in names
        },
    )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an export. Raises `ExportRefused` when there is none or it is not one."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise ExportRefused("manifest", f"{folder / MANIFEST} is missing or malformed") from error
