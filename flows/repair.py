"""`rinr repair`: another trainer's export as a model folder that is checked like our own.

Must not know what is wrong with whose exports: that is `rl.repair`'s.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

import typer

from rl.job_spec import ExportDtype


def repair_folder(export: Path, base: Path, out: Path, dtype: str, say: Callable[[str], None]) -> None:
    """Repair, check, and say what was changed; of what is refused no `out` is left.

    Raises `ExportRefused` and `TrainingError`.
    """
    if dtype not in get_args(ExportDtype):
        raise typer.BadParameter(f"--dtype {dtype}: choose {', '.join(get_args(ExportDtype))}")
    # Here, for they load torch.
    from rl.acceptance import check_export
    from rl.repair import repair_export

    wanted = cast("ExportDtype", dtype)
    repaired = repair_export(export, base, out, dtype=wanted)
    try:
        check_export(out, base, dtype=wanted)
    except BaseException:
        shutil.rmtree(out)
        raise
    for line in repaired.repairs:
        say(f"repaired: {line}")
    say(f"{out}: {repaired.manifest.digest}; an evaluation has to show yet that it answers")
