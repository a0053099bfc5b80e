"""The working folder of a sandbox as a tar stream, made by process 1 while everything else stands still.

Runs inside: standard library only. What it reads is hostile: links are recorded and never followed, what is
neither file, folder nor link is left out, and size, number and depth are limited. Must not know what the
folder is wanted for.
"""

# ruff: noqa: PTH101, PTH115, PTH118, PTH123
# Without pathlib, which costs start time.

from __future__ import annotations

import os
import stat
import tarfile
from binascii import b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

CHUNK = 480 * 1024
"""Bytes of the archive in one frame; in base64 they fit."""
MAX_DEPTH = 40


class _Refused(Exception):
    pass


class _Sender:
    """What tarfile writes to: whole chunks go out as frames."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._pending = bytearray()

    def write(self, data: bytes) -> int:
        self._pending += data
        while len(self._pending) >= CHUNK:
            self._flush(CHUNK)
        return len(data)

    def finish(self) -> None:
        if self._pending:
            self._flush(len(self._pending))

    def _flush(self, size: int) -> None:
        data = b2a_base64(bytes(self._pending[:size]), newline=False).decode()
        self._send({"op": "archive", "data": data})
        del self._pending[:size]


def send_archive(
    folder: str, most_bytes: int, most_entries: int, send: Callable[[dict[str, Any]], None]
) -> None:
    """Frames with `data`, then one that says `done`, with why in `refused` if the folder is past a limit."""
    sender = _Sender(send)
    refused = ""
    try:
        entries = _list(folder, most_bytes, most_entries)
        sink: Any = sender
        with tarfile.open(
            fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for name, status in entries:
                _add(archive, folder, name, status)
        sender.finish()
    except _Refused as error:
        refused = str(error)
    except (OSError, ValueError, MemoryError) as error:
        refused = f"it cannot be read ({type(error).__name__})"
    send({"op": "archive", "done": True, "refused": refused})


def _list(folder: str, most_bytes: int, most_entries: int) -> list[tuple[str, os.stat_result]]:
    found: list[tuple[str, os.stat_result]] = []
    size = 0
    for name, status in _walk(folder, "", 0):
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        found.append((name, status))
        if size > most_bytes:
            raise _Refused(f"it holds more than {most_bytes} bytes")
        if len(found) > most_entries:
            raise _Refused(f"it holds more than {most_entries} files and folders")
    return found


def _walk(folder: str, inside: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    if depth > MAX_DEPTH:
        raise _Refused(f"its folders are nested deeper than {MAX_DEPTH}")
    path = os.path.join(folder, inside)
    _open_up(path, 0o700)
    with os.scandir(path) as entries:
        for name in sorted(entry.name for entry in entries):
            below = f"{inside}/{name}" if inside else name
            status = os.lstat(os.path.join(folder, below))
            if stat.S_ISDIR(status.st_mode):
                yield below, status
                yield from _walk(folder, below, depth + 1)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                yield below, status


def _open_up(path: str, mode: int) -> None:
    """What its owner closed to itself can be read again; the archive keeps the mode that it had."""
    status = os.lstat(path)
    if status.st_mode & mode != mode and status.st_uid == os.getuid():
        os.chmod(path, status.st_mode | mode)


def _add(archive: tarfile.TarFile, folder: str, name: str, status: os.stat_result) -> None:
    path = os.path.join(folder, name)
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    elif stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
        archive.addfile(entry)
    else:
        entry.size = status.st_size
        _open_up(path, 0o400)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            archive.addfile(entry, file)
