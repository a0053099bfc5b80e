"""The daemon and this program's containers on it: how it is reached, which ones are rubbish.

Must not know how a container is made or what runs in it.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import docker
import docker.errors
import requests.exceptions
from docker import DockerClient
from docker.models.containers import Container

from broker.errors import SandboxLost
from broker.sandbox.labels import DEADLINE, HOST, host_of

DOCKER_ERRORS: Final = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)
"""All that a call of the client library may raise when the daemon, or the way to it, is gone."""

_AT_ONCE: Final = 4
"""Removals side by side: a removal is mostly waiting for the kernel."""


def connect(seconds: float = 60.0) -> DockerClient:
    """A client of the daemon that answers here. Raises SandboxLost."""
    try:
        client = docker.from_env(timeout=int(seconds))
        client.ping()  # pyright: ignore[reportUnknownMemberType]
    except DOCKER_ERRORS as error:
        raise SandboxLost(f"no Docker daemon answers ({str(error)[:200]})") from error
    return client


def is_remote(client: DockerClient) -> bool:
    """Whether the daemon may be on another machine: then it can mount nothing of this one."""
    return client.api.base_url != "http+docker://localhost"


def limited_by_daemon(client: DockerClient) -> frozenset[str]:
    """Of the limits that may be missing in a kernel, those that the daemon can set: a subset of {"cpus"}."""
    try:
        facts: dict[str, Any] = client.info()  # pyright: ignore[reportUnknownMemberType]
    except DOCKER_ERRORS:
        return frozenset()
    return frozenset({"cpus"}) if facts.get("CpuCfsQuota") else frozenset()


def sweep_containers() -> int:
    """Remove containers whose host is dead or whose deadline passed; says how many went.

    Also those that were created and never started.
    """
    try:
        client = connect(10.0)
    except SandboxLost:
        return 0
    try:
        found = client.containers.list(all=True, filters={"label": HOST}, ignore_removed=True)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return sum(pool.map(_remove, filter(_is_rubbish, found)))
    except DOCKER_ERRORS:
        return 0
    finally:
        client.close()


def _is_rubbish(container: Container) -> bool:
    labels: dict[str, str] = container.attrs["Config"]["Labels"]
    return time.time() > float(labels.get(DEADLINE, "inf")) or host_of(labels) is False


def _remove(container: Container) -> bool:
    try:
        container.remove(force=True, v=True)
    except DOCKER_ERRORS:  # somebody else removes it just now, or the next round does
        return False
    return True
