"""What of a Dockerfile can be had without building it: the working folder and the files copied into it.

Understood are FROM (of whatever image), WORKDIR /app, and COPY or ADD of the build folder's own files to
places below the working folder. Any other instruction is reported, not guessed: the image would hold more.
Must not know tasks.
"""

import posixpath
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_WORK: Final = "/app"
_HARMLESS: Final = frozenset({"FROM", "LABEL", "MAINTAINER", "CMD", "EXPOSE", "SHELL", "ARG"})


@dataclass
class Image:
    """What was understood."""

    files: dict[str, Path] = field(default_factory=dict[str, Path])
    """Path below the working folder, and the file that is copied there."""
    not_understood: list[str] = field(default_factory=list[str])
    """Instructions whose effect is missing, as they stand."""


def read_dockerfile(text: str, context: Path, workdir: str | None = None) -> Image:
    """`context` is the build folder; `workdir` overrides the image's, as task.toml may."""
    image, place = Image(), "/"
    for instruction, arguments in _instructions(text):
        if instruction == "WORKDIR":
            place = posixpath.normpath(posixpath.join(place, arguments.strip()))
        elif instruction in ("COPY", "ADD") and (copied := _copied(arguments, context, place)) is not None:
            image.files |= copied
        elif instruction not in _HARMLESS:
            image.not_understood.append(f"{instruction} {arguments}".strip())
    if (workdir or place) != _WORK:
        image.not_understood.append(f"WORKDIR {workdir or place}")
    return image


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Instruction in capitals and the rest of its line, continued lines joined."""
    joined = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (not line.strip() and not joined):
            continue
        joined += line.strip().removesuffix("\\")
        if line.rstrip().endswith("\\"):
            joined += " "
            continue
        name, _, rest = joined.strip().partition(" ")
        joined = ""
        if name:
            yield name.upper(), rest.strip()
    if joined.strip():
        name, _, rest = joined.strip().partition(" ")
        yield name.upper(), rest.strip()


def _copied(arguments: str, context: Path, place: str) -> dict[str, Path] | None:
    """Files by path below /app; None for what is no plain copy of the build folder's files into it."""
    try:
        words = shlex.split(arguments)
    except ValueError:
        return None
    if len(words) < 2 or any(word.startswith(("-", "[", "http:", "https:", "git@")) for word in words):
        return None
    *sources, target = words
    into_folder = target.endswith("/") or len(sources) > 1 or target in (".", "./")
    goal = posixpath.normpath(posixpath.join(place, target))
    if goal != _WORK and not goal.startswith(f"{_WORK}/"):
        return None
    below = "" if goal == _WORK else goal.removeprefix(f"{_WORK}/")
    found: dict[str, Path] = {}
    for source in sources:
        path = (context / source.lstrip("/")).resolve()
        if not path.is_relative_to(context.resolve()) or not path.exists() or "*" in source:
            return None
        if path.is_dir():
            files = [item for item in sorted(path.rglob("*")) if item.is_file() and item.name != "Dockerfile"]
            found |= {posixpath.join(below, item.relative_to(path).as_posix()): item for item in files}
        else:
            within = into_folder or below == ""
            found[posixpath.join(below, path.name) if within else below] = path
    return found
