"""The content-addressed store: blobs, records and trees in a folder, safe under many writers.

An object is a read-only file `objects/<2 hex>/<62 hex>` named by the sha256 of its bytes. Writing goes to a
temporary name in the same folder, then fsync, rename and fsync of the folder, so an object has its name only
when it is complete; reading always verifies. Must not know what any object means.

Accepted trade-offs: a checkout hard-links files, so whoever writes into one in place (root can) corrupts the
object, which the next read reports; a killed writer leaves a temporary file, which `sweep` removes. Empty
folders are not part of a tree.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from catalog.digest import canonical_json, digest_bytes, digest_chunks, digest_file, is_digest
from catalog.errors import StoreError

__all__ = ["Ref", "Store", "StoreError", "TreeEntry"]

_TREE: Final = "tree"
# How the canonical JSON of a tree's manifest begins and ends.
_TREE_HEAD: Final = b'{"body":{"entries":['
_TREE_TAIL: Final = b']},"schema":"tree","version":1}'
_TEMPORARY: Final = ".writing-"
_THREADS: Final = 4
_CHUNK: Final = 1 << 20


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ref(_Frozen):
    """The name of a stored object."""

    kind: Literal["blob", "tree", "record"]
    digest: str
    size: int
    """Bytes of content; of a tree, the sum over its files."""


class TreeEntry(_Frozen):
    """One file of a tree."""

    path: str
    """Relative, with forward slashes."""
    mode: Literal["644", "755"]
    """Only whether it is executable is kept."""
    size: int = Field(ge=0)
    digest: str


class Store:
    """A folder of objects. Every method raises StoreError, one line, when storage fails."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._objects = root / "objects"
        with self._naming(root):
            self._objects.mkdir(parents=True, exist_ok=True)

    # Blobs

    def put_blob(self, data: bytes) -> Ref:
        digest = digest_bytes(data)
        self._write(digest, len(data), lambda handle: handle.write(data))
        return Ref(kind="blob", digest=digest, size=len(data))

    def get_blob(self, digest: str) -> bytes:
        """The bytes of an object, verified."""
        path = self._path(digest)
        with self._naming(path, digest):
            data = path.read_bytes()
        if digest_bytes(data) != digest:
            raise StoreError(f"{path}: object is corrupt; delete the file and run the stage again")
        return data

    def put_file(self, path: Path) -> Ref:
        """Store one file as a blob without holding it in memory. A symbolic link is refused."""
        with self._naming(path):
            if path.is_symlink() or not path.is_file():
                raise StoreError(f"{path} is not an ordinary file; store a copy of the file instead")
            entry = self._put_file(path.parent, path)
        return Ref(kind="blob", digest=entry.digest, size=entry.size)

    def checkout_file(self, digest: str, target: Path) -> None:
        """Place a blob, verified, at a path that does not exist: a read-only hard link where the file system
        allows it, else a copy. Never write into it."""
        with self._naming(target):
            if target.exists():
                raise StoreError(f"{target} exists already: name a new file")
            size = self._path(digest).stat().st_size
            self._take_file(target.parent, TreeEntry(path=target.name, mode="644", size=size, digest=digest))

    # Records

    def put_record(self, schema: str, version: int, body: Mapping[str, Any]) -> Ref:
        """Store plain values as canonical JSON. ValueError or TypeError for values JSON has no form for."""
        data = canonical_json({"schema": schema, "version": version, "body": dict(body)})
        return self.put_blob(data).model_copy(update={"kind": "record"})

    def get_record(self, digest: str, schema: str) -> dict[str, Any]:
        """The body of a record of that schema."""
        try:
            record = orjson.loads(self.get_blob(digest))
            found, body = record["schema"], record["body"]
        except (orjson.JSONDecodeError, TypeError, KeyError):
            raise StoreError(f"object {digest} is not a record") from None
        if found != schema:
            raise StoreError(f"record {digest} has schema {found!r}, not {schema!r}")
        return body

    # Trees

    def put_tree(self, folder: Path) -> Ref:
        """Store a folder's files. Symbolic links and special files are refused."""
        with self._naming(folder):
            paths = sorted(_files(folder), key=lambda path: path.relative_to(folder).as_posix())
            with ThreadPoolExecutor(_THREADS) as pool:
                entries = list(pool.map(partial(self._put_file, folder), paths))
        manifest = self.put_record(_TREE, 1, {"entries": [entry.model_dump() for entry in entries]})
        return Ref(kind="tree", digest=manifest.digest, size=sum(entry.size for entry in entries))

    def tree_manifest(self, digest: str) -> tuple[TreeEntry, ...]:
        """The files of a tree, sorted by path."""
        body = self.get_record(digest, _TREE)
        try:
            return tuple(TreeEntry.model_validate(entry) for entry in body["entries"])
        except (KeyError, ValidationError):
            raise StoreError(f"tree {digest} has a malformed manifest") from None

    def checkout_tree(self, digest: str, destination: Path) -> None:
        """Write a tree's files, verified, into a new folder that appears complete or not at all.

        Plain files are read-only hard links where the file system allows, executable ones are copies.
        To change a file, replace it; never write into it.
        """
        entries = self.tree_manifest(digest)
        if destination.exists():
            raise StoreError(f"{destination} exists already: name a new folder")
        with self._naming(destination):
            destination.parent.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=destination.parent))
            try:
                with ThreadPoolExecutor(_THREADS) as pool:
                    list(pool.map(partial(self._take_file, work), entries))
                work.chmod(0o755)
                work.rename(destination)
            finally:
                shutil.rmtree(work, ignore_errors=True)

    # Any object

    def has(self, digest: str) -> bool:
        """Whether the object is there, and all files of it for a tree. Content is not read."""
        path = self._path(digest)
        if not path.is_file():
            return False
        return all(self._path(entry.digest).is_file() for entry in self._members(digest))

    def verify(self, digest: str) -> None:
        """Read the object, and all files of it for a tree, and compare the digests."""
        self._verify_file(digest)
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self._verify_file, (entry.digest for entry in self._members(digest))))

    def sweep(self, older_than_seconds: float = 86_400) -> int:
        """Remove temporary files that killed writers left. Returns how many."""
        before = time.time() - older_than_seconds
        stale = [path for path in self._objects.glob(f"*/{_TEMPORARY}*") if path.stat().st_mtime < before]
        for path in stale:
            path.unlink(missing_ok=True)
        return len(stale)

    # Files

    def _members(self, digest: str) -> tuple[TreeEntry, ...]:
        """The entries of a tree; of any other object none. Large blobs are not read."""
        path = self._path(digest)
        with self._naming(path, digest), path.open("rb") as handle:
            head = handle.read(len(_TREE_HEAD))
            handle.seek(max(0, path.stat().st_size - len(_TREE_TAIL)))
            is_tree = head == _TREE_HEAD and handle.read() == _TREE_TAIL
        return self.tree_manifest(digest) if is_tree else ()

    def _path(self, digest: str) -> Path:
        if not is_digest(digest):
            raise StoreError(f"{digest!r} is not a digest (sha256: and 64 hex digits)")
        name = digest.removeprefix("sha256:")
        return self._objects / name[:2] / name[2:]

    def _put_file(self, folder: Path, path: Path) -> TreeEntry:
        status = path.stat()
        digest, size = digest_file(path), status.st_size

        def copy(handle: IO[bytes]) -> None:
            with path.open("rb") as source:
                chunks = iter(lambda: source.read(_CHUNK), b"")
                copied = digest_chunks(_tee(chunks, handle))
            if copied != digest:
                raise StoreError(f"{path} changed while it was stored: store it again when it is complete")

        self._write(digest, size, copy)
        mode = "755" if status.st_mode & 0o100 else "644"
        return TreeEntry(path=path.relative_to(folder).as_posix(), mode=mode, size=size, digest=digest)

    def _write(self, digest: str, size: int, fill: Callable[[IO[bytes]], Any]) -> None:
        path = self._path(digest)
        with self._naming(path):
            if path.is_file() and path.stat().st_size == size and digest_file(path) == digest:
                return
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                _fsync_folder(self._objects)
            descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
            temporary = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as handle:
                    fill(handle)
                    handle.flush()
                    os.fchmod(handle.fileno(), 0o444)
                    os.fsync(handle.fileno())
                temporary.replace(path)
                _fsync_folder(path.parent)
            finally:
                temporary.unlink(missing_ok=True)

    def _take_file(self, work: Path, entry: TreeEntry) -> None:
        target = work / entry.path
        if not target.resolve().is_relative_to(work.resolve()):
            raise StoreError(f"tree entry {entry.path!r} leaves the folder")
        self._verify_file(entry.digest)
        source = self._path(entry.digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode == "644":
            # Another file system, or too many links: a copy does as well.
            with contextlib.suppress(OSError):
                target.hardlink_to(source)
                return
        shutil.copyfile(source, target)
        target.chmod(int(entry.mode, 8))

    def _verify_file(self, digest: str) -> None:
        path = self._path(digest)
        with self._naming(path, digest):
            found = digest_file(path)
        if found != digest:
            raise StoreError(f"{path}: object is corrupt; delete the file and run the stage again")

    @contextlib.contextmanager
    def _naming(self, path: Path, digest: str = "") -> Generator[None]:
        """Turn an operating-system error into one StoreError line."""
        try:
            yield
        except FileNotFoundError as error:
            if digest:
                raise StoreError(f"object {digest} is not in the store {self.root}") from None
            raise StoreError(f"{error.filename or path}: not found") from None
        except OSError as error:
            where = error.filename or path
            fix = "free space, or choose another storage folder"
            raise StoreError(f"cannot use {where}: {error.strerror or error}; {fix}") from None


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder")
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise StoreError(f"{path} is a symbolic link; store a copy of the file instead")
        if path.is_file():
            yield path
        elif not path.is_dir():
            raise StoreError(f"{path} is not an ordinary file")


def _tee(chunks: Iterable[bytes], handle: IO[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        handle.write(chunk)
        yield chunk


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
