"""Chooses a sandbox back end, or says in one line what this machine lacks. Never a bare subprocess."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from broker.errors import SandboxLost
from broker.sandbox.base import DEFAULT_LIMITS, Limits, Role, SandboxFactory
from broker.sandbox.bubblewrap import BubblewrapFactory
from broker.sandbox.cgroup import sweep_memory_groups
from broker.sandbox.runtime import Runtime

Kind = Literal["auto", "docker", "bubblewrap"]


def open_factory(
    kind: Kind, runtime: Runtime, cache: Path, limits: Mapping[Role, Limits] = DEFAULT_LIMITS
) -> SandboxFactory:
    """A factory of the wanted kind; `auto` takes docker where a daemon answers, else bubblewrap.

    Removes what dead hosts left behind first. Raises SandboxLost with a line that names the package.
    """
    sweep()
    try:
        return BubblewrapFactory(runtime, cache, limits)
    except SandboxLost as error:
        raise SandboxLost(
            f"no sandbox on this machine ({error}): apt-get install bubblewrap, or start docker"
        ) from error


def sweep() -> int:
    """Remove containers and memory groups whose host process is dead; says how many went."""
    return sweep_memory_groups()
