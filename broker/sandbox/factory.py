"""Chooses a sandbox back end, or says in one line what this machine lacks. Never a bare subprocess."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from broker.errors import SandboxLost
from broker.sandbox.base import DEFAULT_LIMITS, Limits, Role, SandboxFactory
from broker.sandbox.bubblewrap import BubblewrapFactory
from broker.sandbox.cgroup import sweep_memory_groups
from broker.sandbox.docker import DockerFactory, sweep_containers
from broker.sandbox.runtime import Runtime

Kind = Literal["auto", "docker", "bubblewrap"]


def open_factory(
    kind: Kind,
    runtime: Runtime,
    cache: Path,
    limits: Mapping[Role, Limits] = DEFAULT_LIMITS,
    run: str = "",
) -> SandboxFactory:
    """A factory of the wanted kind; `auto` takes docker where a daemon answers, else bubblewrap.

    Removes first what dead hosts left behind. `run` labels containers. Raises SandboxLost with one line that
    names the package to install.
    """
    sweep()
    faults: list[str] = []
    if kind in ("auto", "docker"):
        try:
            return DockerFactory(runtime, cache, limits, run)
        except SandboxLost as error:
            faults.append(str(error))
    if kind in ("auto", "bubblewrap"):
        try:
            return BubblewrapFactory(runtime, cache, limits)
        except SandboxLost as error:
            faults.append(str(error))
    needed = {"docker": "start docker", "bubblewrap": "apt-get install bubblewrap"}
    fix = needed.get(kind, "apt-get install bubblewrap, or start docker")
    raise SandboxLost(f"no sandbox on this machine: {fix} ({'; '.join(faults)})")


def sweep() -> int:
    """Remove containers, sockets and memory groups whose host process is dead; says how many went."""
    return sweep_containers() + sweep_memory_groups()
