"""Is SkyRL here, in a version that the adapter knows, with enough GPUs? Each no is one line with the fix.

The one place that tells versions apart. Must not know jobs beyond their settings.
"""

import importlib
import importlib.util
import re
from importlib import metadata
from typing import Any, Final

from rl.errors import TrainingError
from rl.skyrl.settings import SkyrlSettings

OLDEST: Final = (0, 3)
TOO_NEW: Final = (0, 5)
_NEEDED: Final = ("ray", "omegaconf", "tensordict", "torchdata", "loguru")
_WORKERS: Final = ("vllm", "vllm_router", "flash_attn")
_HOW: Final = "deploy/skyrl.md says how to install it"


def require_skyrl() -> str:
    """SkyRL's version. Raises `TrainingError` when it, or what it needs, is absent or of another version."""
    try:
        version = metadata.version("skyrl")
    except metadata.PackageNotFoundError:
        raise TrainingError(
            f"trainer.kind=skyrl needs SkyRL, which is not installed here: {_HOW}, or train with "
            "trainer.kind=embedded"
        ) from None
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not OLDEST <= found < TOO_NEW:
        raise TrainingError(
            f"SkyRL {version} is installed, the adapter knows skyrl>=0.3,<0.5: {_HOW}. (Before 0.2 SkyRL put "
            "step-wise advantages on other calls' tokens.)"
        )
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise TrainingError(f"SkyRL {version} is installed without {', '.join(missing)}: {_HOW}")
    return version


def require_workers() -> None:
    """What engines and policy import. Raises `TrainingError` before Ray is started for nothing."""
    if missing := [name for name in _WORKERS if importlib.util.find_spec(name) is None]:
        raise TrainingError(f"SkyRL's engines and policy need {', '.join(missing)}, which is absent: {_HOW}")


def require_gpus(settings: SkyrlSettings, available: float) -> None:
    """Raise `TrainingError` when Ray has fewer GPUs than the settings place work on."""
    if available < settings.gpus:
        raise TrainingError(
            f"SkyRL is to train on {settings.gpus} GPUs ({settings.nodes} nodes x {settings.gpus_per_node}"
            f"{'' if settings.colocated else ', and engines of their own'}), Ray has {available:g}: set "
            "trainer.skyrl.gpus_per_node and trainer.skyrl.nodes, or RAY_ADDRESS to a larger cluster"
        )


def load_experiment(name: str) -> Any:
    """The class of `module:class`. Raises `TrainingError`."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise TrainingError(f"cannot load trainer.skyrl.experiment={name}: {error}; {_HOW}") from error
