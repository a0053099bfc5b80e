"""Removes execution environments of earlier versions: built folders in the cache, and their Docker images.

Each change of a package or of the supervisor leaves one behind, some hundred MB. What a living process uses
is locked (`runtime.hold`), what a container uses its daemon protects, and a run that needs a removed one
builds or imports it again. Must not know what an environment holds.
"""

import fcntl
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.errors import SandboxLost
from broker.sandbox.runtime import FACTS, Runtime, locked

_BUILT: Final = re.compile(r"[0-9a-f]{16}(-shell)?")


@dataclass(frozen=True)
class Removed:
    """One thing that went."""

    name: str
    bytes: int


def prune_runtimes(cache: Path, keep: Runtime) -> tuple[list[Removed], frozenset[str]]:
    """Remove built environments from their folder; what went, and the digests of those that stay.

    Stays: `keep`, and all that a process uses. Half-built folders of killed processes go, too.
    """
    removed: list[Removed] = []
    digests = {keep.digest}
    if not cache.is_dir():
        return removed, frozenset(digests)
    with locked(cache / ".lock"):  # nobody builds meanwhile
        for folder in sorted(cache.iterdir()):
            if folder.name.startswith((".build-", ".gone-")):
                removed.append(_remove(folder))
            elif _BUILT.fullmatch(folder.name) and folder != keep.root.parent:
                digest = _take(folder)
                removed += [] if digest else [_remove(folder)]
                digests |= {digest} if digest else set()
    return removed, frozenset(digests)


def _take(folder: Path) -> str:
    """The digest of an environment in use. Otherwise nobody can begin to use it any more, and it is empty."""
    try:
        descriptor = os.open(folder / FACTS, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / FACTS).unlink()
    except BlockingIOError:
        return str(json.loads((folder / FACTS).read_text())["digest"])
    finally:
        os.close(descriptor)
    return ""


def _remove(folder: Path) -> Removed:
    size = sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))
    gone = Path(tempfile.mkdtemp(prefix=".gone-", dir=folder.parent)) / "root"
    folder.rename(gone)
    shutil.rmtree(gone.parent, ignore_errors=True)
    return Removed(f"environment {folder.name}", size)


def prune_docker(keep: frozenset[str]) -> list[Removed]:
    """Remove images of other environments from the daemon that answers here; none where none answers."""
    from broker.sandbox.containers import connect  # a second of import
    from broker.sandbox.factory import expect_docker
    from broker.sandbox.image import prune_images

    try:
        expect_docker()
        client = connect(10.0)
    except SandboxLost:
        return []
    try:
        return [Removed(f"image {name}", size) for name, size in prune_images(client, keep)]
    finally:
        client.close()
