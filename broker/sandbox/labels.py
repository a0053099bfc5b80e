"""Who started a sandbox: the labels by which what a dead host left behind is recognised.

A host is named by its process id and start time, for ids are used again, and only on the machine (and in the
process namespace) where such ids mean something. Linux only.
"""

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

HOST: Final = "rinr.host"
MACHINE: Final = "rinr.machine"
RUN: Final = "rinr.run"
DEADLINE: Final = "rinr.deadline"
"""Seconds since the epoch after which the sandbox is rubbish, whoever made it."""
_FOLDER: Final = re.compile(r"rinr-([0-9]+-[0-9]+)-([0-9a-f]+)_\w+")
_MARK: Final = re.compile(rb"rinr-host:(\d+):(\d+-\d+)")


def _start_time(pid: int) -> str | None:
    """Clock ticks since boot at a process's start, or None when no such process lives."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def host_label() -> str:
    """This process, as `pid-start`."""
    return _label(os.getpid())


@cache
def _label(pid: int) -> str:
    return f"{pid}-{_start_time(pid)}"


def lives(label: str) -> bool:
    """Whether the process that a label of this machine names still lives."""
    pid, _, start = label.partition("-")
    return _start_time(int(pid)) == start


def process_mark() -> str:
    """What stands in the command line of every process that this one starts in a sandbox."""
    return f"rinr-host:{_namespace()}:{host_label()}"


def sweep_processes() -> int:
    """Kill marked processes whose host is dead; says how many there were."""
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found = _MARK.search((folder / "cmdline").read_bytes())
            if found and found[1].decode() == _namespace() and not lives(found[2].decode()):
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    return killed


def temporary_prefix(what: str) -> str:
    """How a temporary folder's name begins: with what `sweep_folders` needs to know whose it is."""
    return f"rinr-{host_label()}-{int(_namespace()):x}_{what}_"


def private_folder() -> Path:
    """A new folder for sockets, named after this process. OSError where the disk is full."""
    return Path(tempfile.mkdtemp(prefix=temporary_prefix("sockets")))


def sweep_folders() -> int:
    """Remove temporary folders whose process is dead; says how many went.

    Only of this process namespace: a container may share the folder and count its processes otherwise.
    """
    removed = 0
    here = f"{int(_namespace()):x}"
    for folder in Path(tempfile.gettempdir()).glob("rinr-*"):
        if (name := _FOLDER.fullmatch(folder.name)) and name[2] == here and not lives(name[1]):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


@cache
def _namespace() -> str:
    """The process namespace in which this process counts ids; a container has its own."""
    return str(Path("/proc/self/ns/pid").stat().st_ino)


@cache
def machine() -> str:
    """This boot of this machine, and this process namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}-{_namespace()}"


def host_of(labels: Mapping[str, str]) -> bool | None:
    """Whether the labelled host lives; None when this machine cannot know."""
    return lives(labels[HOST]) if labels.get(MACHINE) == machine() else None
