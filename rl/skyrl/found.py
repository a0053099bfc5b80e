"""Finds what SkyRL exported: the newest complete `global_step_N/policy`.

SkyRL 0.3 writes an export in place, 0.4 in a temporary folder beside it. A killed run leaves part of one, so
what counts as complete is read off the files. Must not know training.
"""

import re
from pathlib import Path
from typing import Final

from rl.errors import ExportRefused, TrainingError
from rl.weights import check_layout, tensor_names, weight_files

_STEP: Final = re.compile(r"global_step_(\d+)")
_NEEDED: Final = ("config.json", "tokenizer.json")
"""The weights come first in SkyRL's order, the tokenizer last."""


def find_export(root: Path) -> Path:
    """The policy folder of the highest step that is complete. Other names are somebody's temporary ones.

    Raises `TrainingError` when there is none.
    """
    steps = sorted(
        ((int(match[1]), path) for path in _children(root) if (match := _STEP.fullmatch(path.name))),
        reverse=True,
    )
    for _, path in steps:
        if is_complete(path / "policy"):
            return path / "policy"
    seen = ", ".join(path.name for _, path in steps) or "nothing"
    raise TrainingError(f"SkyRL left no complete export in {root} (found: {seen}); see its log beside it")


def is_complete(policy: Path) -> bool:
    """Config and tokenizer are there, and every weight file is whole as its own header says."""
    if not all((policy / name).is_file() for name in _NEEDED):
        return False
    try:
        check_layout(policy)
        for path in weight_files(policy):
            tensor_names(path)
    except ExportRefused:
        return False
    return True


def _children(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
