"""`rinr doctor`: what this machine has, what is missing, how to get it. Each line is tried, not assumed."""

import asyncio
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from broker.errors import ModelUnavailable, SandboxLost
from broker.sandbox.factory import check_sandbox, open_factory
from broker.sandbox.runtime import build_runtime
from verifier.release import ReleaseError, find

NEEDED_DISK_GIB = 3
NEEDED_MEMORY_GIB = 6


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    name: str
    state: Literal["ok", "missing", "note"]
    detail: str
    """What was seen, and for `missing` the remedy."""


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    good = sys.version_info >= (3, 11)
    return Finding(
        "Python", "ok" if good else "missing", version if good else f"{version}; install Python 3.12"
    )


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    enough = total >= NEEDED_MEMORY_GIB
    return Finding(
        "memory", "ok" if enough else "note", f"{total:.1f} GiB; the demo needs up to {NEEDED_MEMORY_GIB}"
    )


def _disk(cache: Path) -> Finding:
    folder = cache if cache.exists() else Path.cwd()
    free = shutil.disk_usage(folder).free / 2**30
    if free >= NEEDED_DISK_GIB:
        return Finding("disk", "ok", f"{free:.1f} GiB free")
    return Finding(
        "disk",
        "missing",
        f"{free:.1f} GiB free; a run needs about {NEEDED_DISK_GIB}: make room or set storage.root",
    )


def _packages() -> Iterator[Finding]:
    for name in ("torch", "transformers", "safetensors", "gguf"):
        found = importlib.util.find_spec(name) is not None
        yield Finding(
            name,
            "ok" if found else "missing",
            "installed" if found else "run ./run setup, or install rinr[local]",
        )


def _model(cache: Path) -> Finding:
    from broker.engine.default_model import DEFAULT_MODEL, find_model

    try:
        return Finding("default model", "ok", str(find_model(DEFAULT_MODEL, cache)))
    except (ModelUnavailable, OSError) as error:
        return Finding("default model", "missing", str(error))


def _release() -> Finding:
    try:
        release = find("open-genomics")
    except (ReleaseError, OSError) as error:
        return Finding("bundled release", "missing", str(error))
    return Finding("bundled release", "ok", f"{release.name}, {len(release.tasks)} tasks, digest verified")


async def _sandbox(cache: Path) -> list[Finding]:
    try:
        runtime = build_runtime(packages=cache / "sandbox-packages", cache=cache / "runtime")
        factory = open_factory("auto", runtime, cache=cache)
        checks = await check_sandbox(factory)
    except (SandboxLost, OSError) as error:
        return [Finding("sandbox", "missing", str(error))]
    found = [
        Finding("sandbox", "ok", f"{factory.kind}, Python {runtime.python}, {', '.join(runtime.libraries)}")
    ]
    return found + [Finding(f"sandbox: {c.name}", "ok" if c.passed else "missing", c.detail) for c in checks]


def examine(cache: Path, console: Console) -> bool:
    """Print the table; True if nothing is missing."""
    findings = [_python(), _memory(), _disk(cache), *_packages(), _release(), _model(cache)]
    findings += asyncio.run(_sandbox(cache.resolve()))
    table = Table("check", "state", "detail", title="rinr doctor")
    colours = {"ok": "green", "missing": "red", "note": "yellow"}
    for finding in findings:
        table.add_row(finding.name, f"[{colours[finding.state]}]{finding.state}[/]", finding.detail)
    console.print(table)
    return all(finding.state != "missing" for finding in findings)
