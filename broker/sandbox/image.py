"""The execution environment as a Docker image: the root folder that bubblewrap mounts, imported once.

No registry and no build is needed. `python -m broker.sandbox.image CACHE ROOT_TAR` writes the same root as an
archive for `deploy/build-image` and prints its digest. Must not know how containers are started.
"""

import argparse
import contextlib
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import docker.errors
from docker import DockerClient

from broker.errors import SandboxLost
from broker.sandbox.containers import DOCKER_ERRORS
from broker.sandbox.runtime import Runtime, build_runtime, locked
from catalog.digest import short

REPOSITORY: Final = "rinr-runtime"
RUNTIME: Final = "rinr.runtime"
"""Label of an image: the digest of the root in it."""


def write_archive(runtime: Runtime, path: Path) -> None:
    """The root as a tar file; the same bytes for the same root."""
    with tarfile.open(path, mode="w") as archive:
        archive.add(runtime.root, arcname=".", filter=_as_root)


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def ensure_image(client: DockerClient, runtime: Runtime, cache: Path) -> str:
    """The name of the image with this root, imported if the daemon has none. Raises SandboxLost.

    The tag names the content, and the label proves that somebody's `docker tag` did not borrow the name.
    """
    tag = short(runtime.digest, 16)
    name = f"{REPOSITORY}:{tag}"
    try:
        with locked(cache / "image.lock"):
            if any(_digest(image) == runtime.digest for image in client.images.list(name=name)):
                return name
            with tempfile.NamedTemporaryFile(dir=cache, suffix=".tar") as archive:
                write_archive(runtime, Path(archive.name))
                api: Any = client.api
                changes = [f"LABEL {RUNTIME}={runtime.digest}", "USER 65534:65534", "WORKDIR /work"]
                api.import_image_from_file(archive.name, repository=REPOSITORY, tag=tag, changes=changes)
    except DOCKER_ERRORS as error:
        raise SandboxLost(
            f"Docker cannot import the execution environment (is the disk full?): {error}"
        ) from error
    return name


def prune_images(client: DockerClient, keep: frozenset[str]) -> list[tuple[str, int]]:
    """Remove images of environments whose digest is not to be kept; their names and sizes in bytes.

    One that a container uses, running or not, stays. Raises SandboxLost.
    """
    removed: list[tuple[str, int]] = []
    try:
        for image in client.images.list(name=REPOSITORY):
            if _digest(image) in keep:
                continue
            for name in image.tags:
                with contextlib.suppress(docker.errors.APIError):  # a container uses it
                    client.images.remove(name)  # pyright: ignore[reportUnknownMemberType]
                    removed.append((name, int(image.attrs["Size"])))
    except DOCKER_ERRORS as error:
        raise SandboxLost(f"Docker cannot list its images: {error}") from error
    return removed


def expect_image(client: DockerClient, name: str, runtime: Runtime) -> str:
    """An image that was built or pulled beforehand, if it holds exactly this root. Raises SandboxLost."""
    try:
        found = _digest(client.images.get(name))
    except DOCKER_ERRORS as error:
        raise SandboxLost(f"no image {name}: build it with deploy/build-image ({error})") from error
    if found != runtime.digest:
        raise SandboxLost(f"image {name} holds another environment: build it again with deploy/build-image")
    return name


def _digest(image: Any) -> str | None:
    return image.labels.get(RUNTIME)


def main() -> None:
    """Entry point of `deploy/build-image`."""
    parser = argparse.ArgumentParser(prog="broker.sandbox.image")
    parser.add_argument("cache", type=Path)
    parser.add_argument("root_tar", type=Path)
    options = parser.parse_args()
    runtime = build_runtime(options.cache / "sandbox-packages", options.cache / "runtime")
    write_archive(runtime, options.root_tar)
    print(runtime.digest)


if __name__ == "__main__":
    main()
