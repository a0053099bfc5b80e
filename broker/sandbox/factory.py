"""Chooses a sandbox back end, or says in one line what this machine lacks. Never a bare subprocess."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from broker.errors import SandboxLost
from broker.sandbox.base import DEFAULT_LIMITS, Limits, Role, SandboxFactory
from broker.sandbox.bubblewrap import BubblewrapFactory
from broker.sandbox.cgroup import sweep_groups
from broker.sandbox.check import Check, check_sandbox
from broker.sandbox.labels import sweep_folders, sweep_processes
from broker.sandbox.runtime import Runtime
from broker.sandbox.watchdog import keep_watch

__all__ = ["Check", "Kind", "check_sandbox", "open_factory", "sweep"]

Kind = Literal["auto", "docker", "bubblewrap"]


def open_factory(
    kind: Kind,
    runtime: Runtime,
    cache: Path,
    limits: Mapping[Role, Limits] = DEFAULT_LIMITS,
    run: str = "",
) -> SandboxFactory:
    """A factory of the wanted kind; `auto` takes docker where a daemon answers, else bubblewrap.

    Removes first what dead hosts left behind, and starts the watchdog that does so for this one. `run` labels
    containers. Raises SandboxLost with one line that names the package to install.
    """
    sweep()
    faults: list[str] = []
    if kind in ("auto", "docker"):
        try:
            expect_docker()
            from broker.sandbox.docker import DockerFactory

            factory = DockerFactory(runtime, cache, limits, run)
            keep_watch(containers=True)
            return factory
        except SandboxLost as error:
            faults.append(str(error))
    if kind in ("auto", "bubblewrap"):
        try:
            factory = BubblewrapFactory(runtime, cache, limits)
            keep_watch(containers=False)
            return factory
        except SandboxLost as error:
            faults.append(str(error))
    needed = {"docker": "start docker", "bubblewrap": "apt-get install bubblewrap"}
    fix = needed.get(kind, "apt-get install bubblewrap, or start docker")
    raise SandboxLost(f"no sandbox on this machine: {fix} ({'; '.join(faults)})")


def expect_docker() -> None:
    """Raises SandboxLost where no daemon can be: its client library takes a second to import."""
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        raise SandboxLost("no Docker daemon answers")


def sweep() -> int:
    """Remove what hosts that are dead by now left behind: processes, memory groups, containers, sockets.

    Says how many things went.
    """
    removed = sweep_processes() + sweep_groups() + sweep_folders()
    try:
        expect_docker()
    except SandboxLost:
        return removed
    from broker.sandbox.containers import sweep_containers

    return removed + sweep_containers()
