"""For root only: a private mount namespace through which a user without rights reaches closed folders.

Root becomes such a user before it starts bubblewrap, but a checkout often lies in a folder of mode 0700. The
namespace shows chosen folders under /sys (which nothing here needs), is kept alive by one open descriptor,
and so vanishes with this process, however it dies. Must not know what the folders hold.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Final

from broker.errors import SandboxLost
from catalog.digest import digest_json, short

_SETUP: Final = "mount -t tmpfs -o mode=0755,size=1m rinr /sys && echo ready && read line"
_SHOW: Final = 'mkdir "$2" && mount --bind "$1" "$2"'
_HIDE: Final = 'umount "$1" && rmdir "$1"'


class MountSpace:
    """The namespace. Open descriptor: /proc/<this process>/fd/<number>, never inherited."""

    def __init__(self) -> None:
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SETUP]
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert holder.stdout is not None
        ready = holder.stdout.readline() == b"ready\n"
        if ready:
            self._descriptor = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        _, complaint = holder.communicate(b"\n")
        if not ready:
            raise SandboxLost(f"root needs a private mount namespace: {complaint.decode().strip()}")
        self._names = itertools.count()
        self._shown: dict[Path, str] = {}
        self._lock = threading.Lock()

    def enter(self) -> list[str]:
        """The command prefix that enters the namespace, still as root."""
        return ["nsenter", f"--mount=/proc/{os.getpid()}/fd/{self._descriptor}"]

    def enter_as(self, user: int) -> list[str]:
        """The same as a user without any right, who has a group of the same number."""
        return [*self.enter(), "--setuid", str(user), "--setgid", str(user), "--"]

    def show(self, folder: Path) -> str:
        """Where that user finds `folder`. Blocks for milliseconds, once a folder. Raises SandboxLost."""
        with self._lock:
            if folder not in self._shown:
                place = f"/sys/{next(self._names)}"
                self._run(_SHOW, str(folder), place)
                self._shown[folder] = place
            return self._shown[folder]

    def hide(self, folder: Path) -> None:
        """Stop showing it; sandboxes that already started keep their view."""
        with self._lock:
            if place := self._shown.pop(folder, None):
                self._run(_HIDE, place)

    def _run(self, script: str, *arguments: str) -> None:
        command = [*self.enter(), "sh", "-c", script, "sh", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SandboxLost(f"cannot show {arguments[0]} to sandboxes: {done.stderr.strip()}")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def readable_by_others(folder: Path, cache: Path) -> Path:
    """`folder` itself when any user may read all of it, else a readable copy of it in the cache.

    Raises SandboxLost when it is not there or the disk is full.
    """
    try:
        return _readable_by_others(folder, cache)
    except OSError as error:
        raise SandboxLost(
            f"cannot show {folder} to sandboxes: {error}; make room or set storage.cache"
        ) from error


def _readable_by_others(folder: Path, cache: Path) -> Path:
    found: list[tuple[str, int, int]] = []
    closed = False
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.stat()
        wanted = 0o005 if path.is_dir() else 0o004
        closed = closed or status.st_mode & wanted != wanted
        found.append((str(path), status.st_mtime_ns, status.st_size))
    if not closed:
        return folder
    target = cache / "readable" / short(digest_json(found), 16)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
            copy = Path(temporary) / "copy"
            shutil.copytree(folder, copy, copy_function=shutil.copyfile)
            for path in (copy, *copy.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
            if not target.exists():
                copy.rename(target)
    return target
