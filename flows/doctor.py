"""`rinr doctor`: what this machine has, what is missing, how to get it. Each line is tried, not assumed."""

import asyncio
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from broker.errors import ModelUnavailable, SandboxLost
from broker.sandbox.base import SandboxFactory
from broker.sandbox.bubblewrap import BubblewrapFactory
from broker.sandbox.check import PROOF_LIMITS, Check, check_sandbox
from broker.sandbox.factory import Kind, open_factory, sweep
from broker.sandbox.prune import prune_docker, prune_runtimes
from broker.sandbox.runtime import Runtime, build_runtime
from flows.doctor_gpu import gpu_findings
from flows.finding import Finding, State
from verifier.release import ReleaseError, find

BACK_ENDS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "docker": ("docker",),
    "bubblewrap": ("bubblewrap",),
    "all": ("docker", "bubblewrap"),
}
NEEDED_DISK_GIB = 3
NEEDED_MEMORY_GIB = 6


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


async def _prove(kind: Kind, runtime: Runtime, cache: Path) -> tuple[str, list[Check]]:
    """The back end that was opened and what it proved; a back end that cannot be opened proves nothing."""
    try:
        factory = open_factory(kind, runtime, cache=cache, limits=PROOF_LIMITS)
    except SandboxLost as error:
        return kind, [Check("starts", False, str(error))]
    try:
        return factory.kind, [*await check_sandbox(factory), *_starts(factory)]
    finally:
        await factory.close()


def _starts(factory: SandboxFactory) -> list[Check]:
    """How sandboxes are started here, which is known once one was."""
    if not isinstance(factory, BubblewrapFactory):
        return []
    fault = factory.nursery.fault
    return [Check("starts", not fault or None, f"one by one: {fault}" if fault else "forked from a zygote")]


def _finding(kind: str, check: Check) -> Finding:
    states: dict[bool | None, State] = {True: "ok", False: "failed", None: "note"}
    return Finding(f"{kind}: {check.name}", states[check.passed], check.detail)


async def _sandbox(cache: Path, kinds: Iterable[Kind]) -> list[Finding]:
    try:
        runtime = build_runtime(packages=cache / "sandbox-packages", cache=cache / "runtime")
    except (SandboxLost, OSError) as error:
        return [Finding("sandbox", "missing", str(error))]
    libraries = ", ".join(runtime.libraries)
    found = [Finding("sandbox", "ok", f"Python {runtime.version}, {libraries}; {runtime.digest[:23]}")]
    for kind in kinds:
        opened, checks = await _prove(kind, runtime, cache)
        found += [_finding(opened, check) for check in checks]
    return found


def examine(cache: Path, console: Console) -> bool:
    """Print what this machine has; True if nothing is missing."""
    findings = [_python(), _memory(), _disk(cache), *_packages(), _release(), _model(cache)]
    findings += gpu_findings()
    findings += asyncio.run(_sandbox(cache.resolve(), ("auto",)))
    return _show(findings, "rinr doctor", console)


def examine_sandboxes(cache: Path, kinds: Iterable[Kind], console: Console) -> bool:
    """Prove the isolation of these back ends on this machine and print what was seen; True if all holds."""
    return _show(asyncio.run(_sandbox(cache.resolve(), kinds)), "rinr doctor --sandbox", console)


def tidy_up(cache: Path, console: Console) -> None:
    """Remove sandbox environments that neither this version nor any process uses. Raises SandboxLost."""
    cache = cache.resolve()
    current = build_runtime(packages=cache / "sandbox-packages", cache=cache / "runtime")
    sweep()
    removed, stay = prune_runtimes(cache / "runtime", current)
    removed += prune_docker(stay)
    for one in removed:
        console.print(f"removed {one.name}, {one.bytes / 1e6:.0f} MB", highlight=False, soft_wrap=True)
    total = sum(one.bytes for one in removed)
    console.print(f"{total / 1e6:.0f} MB freed; {len(stay)} in use or current", highlight=False)


def _show(findings: Iterable[Finding], title: str, console: Console) -> bool:
    table = Table("check", "state", "detail", title=title)
    colours = {"ok": "green", "missing": "red", "failed": "bold red", "note": "yellow"}
    complete = True
    for finding in findings:
        state = f"[{colours[finding.state]}]{finding.state}[/]"
        table.add_row(finding.name, state, escape(finding.detail))
        complete = complete and finding.state not in ("missing", "failed")
    console.print(table)
    return complete
