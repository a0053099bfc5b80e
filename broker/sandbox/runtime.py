"""The pinned execution environment: a root folder with CPython, its libraries and the supervisor, built once.

Both back ends run the same folder. Nothing is downloaded here: the interpreter is a copy of the one that runs
this, the packages come from a folder that the set-up filled from the lock. Must not know how it is mounted.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.errors import SandboxLost
from catalog.digest import digest_bytes, digest_file, digest_json, short

FACTS: Final = "runtime.json"
"""What is known of a built environment. Locked by each process that uses it."""
_INSIDE: Final = (
    "archive.py",
    "child.py",
    "kernel.py",
    "protocol.py",
    "supervisor.py",
    "warming.py",
    "workers.py",
    "zygote.py",
)
_HERE: Final = Path(__file__).parent
_STDLIB_LEFT_OUT: Final = re.compile(
    r"__pycache__|site-packages|dist-packages|tests?|idlelib|tkinter|turtledemo|ensurepip|lib2to3|pydoc_data"
    r"|config-.*|sitecustomize\.py|_tkinter\..*|_test.*\.so|.*\.a|EXTERNALLY-MANAGED"
)
_PACKAGES_LEFT_OUT: Final = re.compile(
    r"__pycache__|tests|bin|.*\.pyi|.*\.a|.*\.h|\.lock"
    r"|RECORD|INSTALLER|REQUESTED|direct_url\.json|uv_cache\.json"  # how it was installed, and where from
)
_MOUNT_POINTS: Final = ("assets", "dev", "lake", "proc", "rinr", "tmp", "work")
_ACCOUNTS: Final = (
    "program:x:65533:65533:program:/work:/bin/false\nnobody:x:65534:65534:nobody:/work:/bin/false\n"
)


@dataclass(frozen=True)
class Runtime:
    """A built environment. `python` is the interpreter's path inside it."""

    root: Path
    digest: str
    """Over paths, modes and contents; byte code is left out."""
    python: str
    version: str
    libraries: tuple[str, ...]
    """Importable third-party distributions, as `name version`."""
    library_path: str
    """Where the loader finds shared libraries inside."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Command that starts the supervisor inside; the settings follow as one more argument."""
        return self._command("supervisor")

    @property
    def zygote_arguments(self) -> tuple[str, ...]:
        """The same for the zygote, from which started sandboxes are forked."""
        return self._command("zygote")

    def _command(self, module: str) -> tuple[str, ...]:
        bootstrap = (
            f"import sys; sys.path.append('/opt/rinr'); from broker.sandbox.{module} import main; main()"
        )
        # `-I` without `-E`, which would ignore the hash seed.
        return (self.python, "-s", "-P", "-S", "-X", "utf8", "-c", bootstrap)

    @property
    def identity(self) -> str:
        """Digest of all that runs inside: the root, the command and the environment variables."""
        return digest_json(
            {"root": self.digest, "arguments": list(self.arguments), "environment": self.environment}
        )

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment inside. One thread for linear algebra: sandboxes share few cores."""
        return {
            "HOME": "/work",
            "LANG": "C.UTF-8",
            "LD_LIBRARY_PATH": self.library_path,
            "MPLCONFIGDIR": "/tmp",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PATH": "/usr/bin:/bin",
            # Programs iterate over sets of texts; the same program must ask the same twice (SEL-03, replay).
            "PYTHONHASHSEED": "0",
            "TZ": "UTC",
        }


def build_runtime(packages: Path, cache: Path) -> Runtime:
    """The environment for this interpreter and these packages; built into `cache`, then found by its key.

    Safe under concurrent callers. Raises SandboxLost when the packages folder is missing or the disk is full.
    """
    try:
        return _find_or_build(packages.resolve(), cache.resolve())
    except OSError as error:
        raise SandboxLost(
            f"cannot build the execution environment in {cache}: {error}; make room or set storage.cache"
        ) from error


def _find_or_build(packages: Path, cache: Path) -> Runtime:
    if not (packages / "numpy").is_dir() or not (packages / "pandas").is_dir():
        raise SandboxLost(f"no numpy and pandas for the sandbox in {packages}: run ./run setup")
    folder = cache / short(_key(packages), 16)
    while not hold(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / ".lock"):
            if not (folder / FACTS).exists():
                _build(packages, folder)
    facts = json.loads((folder / FACTS).read_text())
    libraries = tuple(facts.pop("libraries"))
    return Runtime(root=folder / "root", libraries=libraries, **facts)


_held: dict[Path, int] = {}


def hold(folder: Path) -> bool:
    """Keep `prune` from a built environment as long as this process lives; False if it is not there."""
    if folder in _held and (folder / FACTS).exists():
        return True
    try:
        descriptor = os.open(folder / FACTS, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    if not (folder / FACTS).exists():  # removed while this waited
        os.close(descriptor)
        return False
    _held[folder] = descriptor
    return True


@contextmanager
def locked(path: Path) -> Generator[None]:
    """One process at a time, over this file."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _distributions(packages: Path) -> list[tuple[str, Path]]:
    found = sorted(packages.glob("*.dist-info"))
    return [(folder.name.removesuffix(".dist-info").replace("-", " "), folder) for folder in found]


def _inside_files() -> Iterator[tuple[str, bytes]]:
    """The package `broker.sandbox` as far as it runs inside; its parents are empty there."""
    for package in ("broker", "broker/sandbox"):
        yield f"{package}/__init__.py", b""
    for name in _INSIDE:
        yield f"broker/sandbox/{name}", (_HERE / name).read_bytes()


def _key(packages: Path) -> str:
    executable = _base_executable()
    return digest_json(
        {
            "recipe": digest_file(Path(__file__)),
            "python": [sys.version, str(executable), str(executable.stat().st_mtime_ns)],
            "packages": {name: digest_file(folder / "RECORD") for name, folder in _distributions(packages)},
            "inside": {path: digest_bytes(data) for path, data in _inside_files()},
        }
    )


def _base_executable() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _build(packages: Path, folder: Path) -> None:
    python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as temporary:
        stage = Path(temporary) / "stage"
        root = stage / "root"
        _copy_interpreter(root, python)
        _copy_tree(packages, root / "opt/packages", _PACKAGES_LEFT_OUT)
        for path, data in _inside_files():
            _write(root / "opt/rinr" / path, data)
        library_path = copy_shared_libraries(root, [_base_executable(), *root.rglob("*.so*")])
        for name in _MOUNT_POINTS:
            (root / name).mkdir()
        _write(root / "etc/passwd", _ACCOUNTS.encode())
        _write(root / "etc/group", b"program:x:65533:\nnobody:x:65534:\n")
        _fix_modes(root)
        facts = {
            "digest": digest_json(dict(contents(root))),
            "python": python,
            "version": sys.version.split()[0],
            "libraries": [name for name, _ in _distributions(packages)],
            "library_path": library_path,
        }
        _compile(root)
        _write(stage / FACTS, json.dumps(facts).encode())
        stage.chmod(0o755)
        stage.rename(folder)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _copy_tree(source: Path, target: Path, left_out: re.Pattern[str]) -> None:
    """Copy files and folders, links followed; names that match `left_out` whole are skipped."""

    def ignore(folder: str, names: list[str]) -> set[str]:
        gone = {name for name in names if not (Path(folder) / name).exists()}
        return gone | {name for name in names if left_out.fullmatch(name)}

    shutil.copytree(source, target, ignore=ignore, copy_function=shutil.copyfile, dirs_exist_ok=True)


def _copy_interpreter(root: Path, python: str) -> None:
    target = root / python.lstrip("/")
    target.parent.mkdir(parents=True)
    shutil.copyfile(_base_executable(), target)
    standard_library = Path(os.__file__).parent
    _copy_tree(standard_library, root / "usr/lib" / target.name, _STDLIB_LEFT_OUT)


def copy_shared_libraries(root: Path, binaries: Iterable[Path]) -> str:
    """Copy what `ldd` names, system libraries to their own place; returns the folders to search."""
    command = ["ldd", *map(str, binaries)]
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listing, re.MULTILINE))
    folders: set[str] = set()
    for name in sorted(found):
        path = Path(name)
        if root in path.parents:
            continue
        # The loader itself is found by its absolute path; an interpreter's own folder means nothing inside.
        home = path.parent if name.startswith(("/lib", "/usr/lib")) else Path("/usr/lib/python-shared")
        target = root / str(home).lstrip("/") / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        folders.add(str(home))
    return ":".join(sorted(folders))


def _walk(root: Path, visit: Callable[[Path], None]) -> None:
    for folder, _, names in os.walk(root):
        visit(Path(folder))
        for name in names:
            visit(Path(folder) / name)


def _fix_modes(root: Path) -> None:
    """Readable by any user id, writable by none but the owner, whatever the caller's umask."""

    def fix(path: Path) -> None:
        runs = path.is_dir() or path.parent.name == "bin" or ".so" in path.name
        path.chmod(0o755 if runs else 0o644)

    _walk(root, fix)
    for name in ("tmp", "work"):  # Docker gives a mounted memory folder the mode of what it covers
        (root / name).chmod(0o1777)


def contents(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Path, mode and digest of everything below a root, in order; what a runtime's digest is made of."""
    for path in sorted(root.rglob("*")):
        content = digest_file(path) if path.is_file() else "folder"
        yield str(path.relative_to(root)), [oct(path.stat().st_mode & 0o7777), content]


def _compile(root: Path) -> None:
    """Byte code that is valid whatever the file times, for the root is read-only when it runs."""
    command = [str(_base_executable()), "-I", "-m", "compileall", "-q", "-j", "0"]
    command += ["--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
    command += [str(root / "usr/lib"), str(root / "opt")]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _walk(root, lambda path: path.chmod(0o644) if path.suffix == ".pyc" else None)
    for path in root.rglob("__pycache__"):
        path.chmod(0o755)
