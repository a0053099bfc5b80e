"""The execution environment with a shell: for releases whose tasks work on files and are checked by scripts.

A built root is linked, file by file, into a second one, and gets bash, the usual small tools of this machine
and the folders that Harbor's scripts name: /app is /work, /tests and /logs lie in /tmp. Its digest covers all
of it. Must not know how a root is mounted.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from broker.errors import SandboxLost
from broker.sandbox.runtime import FACTS, Runtime, contents, copy_shared_libraries, hold, locked
from catalog.digest import digest_file, digest_json, short

_NEEDED: Final = "bash cat chmod cp echo env grep head ls mkdir mv rm sed sh sort tail test tr wc"
_WELCOME: Final = (
    "[ awk base64 basename cmp comm cut date dd diff dirname egrep expr false fgrep find fold gunzip gzip "
    "id join ln md5sum mktemp nl nohup od paste printf pwd readlink realpath rmdir seq setsid sha256sum shuf "
    "sleep split stat tac tar tee timeout touch true uname uniq which xargs yes zcat"
)
_LINKS: Final = {"app": "work", "logs": "tmp/logs", "tests": "tmp/tests"}


def with_shell(runtime: Runtime, cache: Path) -> Runtime:
    """The runtime and a shell; built into `cache`, then found by its key. Safe under concurrent callers.

    Raises SandboxLost where this machine has no bash and its tools, or the disk is full.
    """
    tools = _find_tools()
    key = digest_json({"base": runtime.digest, "tools": tools, "recipe": digest_file(Path(__file__))})
    folder = cache.resolve() / f"{short(key, 16)}-shell"
    try:
        while not hold(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked(folder.parent / ".lock"):
                if not (folder / FACTS).exists():
                    _build(runtime, tools, folder)
        facts = json.loads((folder / FACTS).read_text())
    except OSError as error:
        raise SandboxLost(
            f"cannot build the shell environment in {cache}: {error}; make room or set storage.cache"
        ) from error
    return dataclasses.replace(runtime, root=folder / "root", **facts)


def _find_tools() -> dict[str, str]:
    """Digest by name of each tool's program."""
    places = {name: shutil.which(name, path="/usr/bin:/bin") for name in f"{_NEEDED} {_WELCOME}".split()}
    if missing := [name for name in _NEEDED.split() if places[name] is None]:
        raise SandboxLost(
            f"tasks checked by scripts need a shell, and this machine has no {missing[0]}: "
            "apt-get install bash coreutils grep sed"
        )
    return {name: digest_file(Path(place).resolve()) for name, place in places.items() if place}


def _build(runtime: Runtime, tools: dict[str, str], folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as temporary:
        stage = Path(temporary) / "stage"
        root = stage / "root"
        shutil.copytree(runtime.root, root, copy_function=_link, symlinks=True)
        programs = [Path(str(shutil.which(name, path="/usr/bin:/bin"))).resolve() for name in tools]
        for name, program in zip(tools, programs, strict=True):
            shutil.copyfile(program, root / "usr/bin" / name)
            (root / "usr/bin" / name).chmod(0o755)
        library_path = copy_shared_libraries(root, programs)
        _open_modes(root)
        _add_links(root, runtime.python)
        known = runtime.library_path.split(":")
        facts = {
            "digest": digest_json(dict(contents(root))),
            "library_path": ":".join([*known, *(p for p in library_path.split(":") if p and p not in known)]),
        }
        (stage / FACTS).write_text(json.dumps(facts))
        stage.chmod(0o755)
        stage.rename(folder)


def _link(source: str, target: str) -> None:
    """The root's files never change, so they may have two names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _open_modes(root: Path) -> None:
    """Libraries that were added just now are readable and run by everybody, as `runtime` has it."""
    for path in root.rglob("*.so*"):
        if path.stat().st_nlink == 1:
            path.chmod(0o755)
    for folder in root.rglob("*"):
        if folder.is_dir() and folder.name not in ("tmp", "work"):
            folder.chmod(0o755)


def _add_links(root: Path, python: str) -> None:
    for place in ("tmp/tests", "tmp/logs"):  # what the links name exists in the root, too
        (root / place).mkdir(mode=0o755, exist_ok=True)
    for name, target in _LINKS.items():
        (root / name).symlink_to(target)
    for name in ("python", "python3"):
        with contextlib.suppress(FileExistsError):
            (root / "usr/bin" / name).symlink_to(Path(python).name)
    if not (root / "bin").exists():
        (root / "bin").symlink_to("usr/bin")
