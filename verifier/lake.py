"""One content-addressed lake for all releases: its files are kept once in a store and linked into folders.

Taking a lake copies and hashes its files, several at a time; placing one makes hard links where the file
system allows them (copies across devices), so that two releases with the same lake use its bytes once. A
release lists digest and size of every file as for any other. Must not know tasks, or what the files mean.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from catalog.digest import digest_file, digest_json
from catalog.store import Store, StoreError
from verifier.draft import LAKE, Draft
from verifier.layout import ReleaseError, is_plain

_THREADS: Final = max(2, os.cpu_count() or 2)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LakeFile(_Frozen):
    path: str
    """Inside the lake, with forward slashes."""
    digest: str
    size: int
    """Bytes."""


class Lake(_Frozen):
    """A lake whose files are in a store."""

    files: tuple[LakeFile, ...]
    """Sorted by path."""
    remarks: tuple[str, ...]
    """Files that are of no use to anybody: empty ones, resource forks of another system."""

    @property
    def digest(self) -> str:
        """The lake's identity: equal files under equal names."""
        return digest_json([file.model_dump() for file in self.files])

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def take_lake(folder: Path, store: Store, names: Sequence[str] | None = None) -> Lake:
    """Copy a folder's files, or those named, into the store.

    Raises ReleaseError naming the file for a symbolic link, anything that is no ordinary file, a name that
    leaves the folder, and a file that cannot be read.
    """
    if not folder.is_dir():
        raise ReleaseError(f"{folder}: no such folder; name the folder of the lake's files")
    chosen = sorted(set(names)) if names is not None else sorted(_names(folder))
    for name in chosen:
        _check(folder, name)

    def put(name: str) -> LakeFile:
        try:
            ref = store.put_file(folder / name)
        except StoreError as error:
            raise ReleaseError(f"lake file {name!r}: {error}") from None
        return LakeFile(path=name, digest=ref.digest, size=ref.size)

    with ThreadPoolExecutor(_THREADS) as pool:
        files = tuple(pool.map(put, chosen))
    return Lake(files=files, remarks=tuple(remark for file in files for remark in _remarks(file)))


def place_lake(lake: Lake, store: Store, destination: Path) -> None:
    """Link the files below `destination`, verified. A file that is there already must be the same.

    Raises ReleaseError naming the file; then nothing of the lake was placed.
    """
    missing: list[LakeFile] = []
    for file in lake.files:
        target = destination / file.path
        if not target.exists():
            missing.append(file)
        elif not target.is_file() or target.stat().st_size != file.size or digest_file(target) != file.digest:
            raise ReleaseError(f"{target} is another file already: remove it, or rename one of the two")
    placed: list[Path] = []

    def place(file: LakeFile) -> None:
        target = destination / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            store.checkout_file(file.digest, target)
        except StoreError as error:
            raise ReleaseError(f"lake file {file.path!r}: {error}") from None
        placed.append(target)

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(place, missing))
    except BaseException:
        for target in placed:
            target.unlink(missing_ok=True)
        raise


def add_lake(draft: Draft, folder: Path, store: Store, names: Sequence[str] | None = None) -> Lake:
    """Take a folder's files, or those named, and place them in the draft's lake. Raises ReleaseError."""
    lake = take_lake(folder, store, names)
    place_lake(lake, store, draft.root / LAKE)
    return lake


def _names(folder: Path) -> Iterator[str]:
    """Everything below the folder that is no plain folder."""
    for parent, folders, files in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        yield from ((inside / name).as_posix() for name in (*files, *links))


def _check(folder: Path, name: str) -> None:
    path = folder / name
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ReleaseError(f"{folder}: the file name {name!r} is not UTF-8: rename the file") from None
    if not is_plain(name):
        raise ReleaseError(f"{folder}: {name!r} is not a plain path inside the lake")
    link = next((part for part in (path, *path.parents) if part != folder and part.is_symlink()), None)
    if link is not None and link.is_relative_to(folder):
        raise ReleaseError(f"{link} is a symbolic link; copy the file instead")
    if not path.is_file():
        what = "is not an ordinary file" if path.exists() else "is missing"
        raise ReleaseError(f"{path} {what}; a lake holds ordinary files only")


def _remarks(file: LakeFile) -> Iterator[str]:
    if file.size == 0:
        yield f"{file.path}: empty file"
    if Path(file.path).name.startswith("._"):
        yield f"{file.path}: a resource fork of another system, of no use"
