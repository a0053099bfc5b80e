"""The safetensors files of a model folder: which a loader would read, and their tensors one at a time.

Must not know bases, exports or why anybody looks.
"""

# safetensors annotates these only in part:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from rl.errors import ExportRefused

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """One file of the agreed name, or the shards that an index names. Raises `ExportRefused`."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ExportRefused("weights_unreadable", f"{folder} has neither {WEIGHTS} nor {INDEX}")
    files = [folder / name for name in sorted(set(weight_map(folder).values()))]
    if missing := [path.name for path in files if not path.is_file()]:
        raise ExportRefused("weights_unreadable", f"{folder} misses the shard {missing[0]}")
    return files


def weight_map(folder: Path) -> dict[str, str]:
    """Tensor to file, by a sharded folder's index. Raises `ExportRefused`."""
    try:
        value: Any = json.loads((folder / INDEX).read_bytes())["weight_map"]
        return {str(name): str(file) for name, file in value.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportRefused("weights_unreadable", f"{INDEX} is no index of shards: {error!r}") from error


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of one file. Raises `ExportRefused`."""
    with _opened(path) as handle:
        for name in sorted(handle.keys()):
            yield name, handle.get_tensor(name)


def tensor_names(path: Path) -> list[str]:
    """What a file holds, unread. Raises `ExportRefused`."""
    with _opened(path) as handle:
        return sorted(handle.keys())


def tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of a whole folder. Raises `ExportRefused`."""
    for path in weight_files(folder):
        yield from read_tensors(path)


def check_layout(folder: Path) -> None:
    """Every weight file is one that a loader reads, and holds exactly what the index says of it.

    A loader would leave out the first and fill the second with noise. Raises `ExportRefused`.
    """
    files = weight_files(folder)
    if surplus := sorted(
        {path.name for path in folder.glob("*.safetensors")} - {path.name for path in files}
    ):
        raise ExportRefused("weights_unreadable", f"{folder} has {surplus[0]}, which no loader reads")
    if files == [folder / WEIGHTS]:
        return
    wanted = weight_map(folder)
    found = {name: path.name for path in files for name in tensor_names(path)}
    if wrong := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
        name = wrong[0]
        raise ExportRefused(
            "weights_unreadable",
            f"{INDEX} says that {name} is in {wanted.get(name)}, it is in {found.get(name)}",
        )


@contextmanager
def _opened(path: Path) -> Generator[Any]:
    try:
        with safe_open(path, framework="pt") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        raise ExportRefused("weights_unreadable", f"{path.name}: {error}") from error
