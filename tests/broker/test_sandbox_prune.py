"""What is tidied up: environments of earlier versions, temporary folders of the dead; not what is in use."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.sandbox import runtime as runtime_module
from broker.sandbox.base import Role
from broker.sandbox.containers import connect
from broker.sandbox.docker import DockerFactory
from broker.sandbox.factory import sweep
from broker.sandbox.image import REPOSITORY, RUNTIME, prune_images
from broker.sandbox.labels import temporary_prefix
from broker.sandbox.prune import prune_runtimes
from broker.sandbox.runtime import FACTS, Runtime, hold
from tests.fixtures.docker_daemon import Daemon
from tests.fixtures.sandbox_probe import execute, open_or_skip

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from broker.sandbox.runtime import hold
print(hold(Path(sys.argv[1])), flush=True)
time.sleep(600)
"""
SERVE = """
import sys, time
from broker.server_process import ServerProcess
server = ServerProcess([sys.executable, "-c", "import time; time.sleep(60)"])
server.launch()
print(server._folder.name, flush=True)
time.sleep(600)
"""


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def built(cache: Path, name: str) -> Path:
    """Something that looks like a built environment."""
    folder = cache / name
    (folder / "root" / "usr").mkdir(parents=True)
    (folder / "root" / "usr" / "file").write_bytes(bytes(10_000))
    (folder / FACTS).write_text(json.dumps({"digest": f"sha256:{name}"}))
    return folder


def runtime_in(folder: Path) -> Runtime:
    return Runtime(folder / "root", f"sha256:{folder.name}", "python", "3", (), "/lib")


def test_only_what_nothing_uses_is_removed(tmp_path: Path) -> None:
    names = [digit * 16 for digit in "abcde"]
    current, used, old, shell, ours = (
        built(tmp_path, name) for name in (*names[:3], f"{names[3]}-shell", names[4])
    )
    notes, half = tmp_path / "notes", tmp_path / ".build-x"
    notes.mkdir()
    half.mkdir()
    assert hold(ours)
    with child(HOLD, str(used)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        removed, stay = prune_runtimes(tmp_path, runtime_in(current))
        gone = [".build-x", names[2], f"{names[3]}-shell"]
        assert sorted(one.name for one in removed) == [f"environment {name}" for name in gone]
        assert sum(one.bytes for one in removed) >= 20_000
        assert stay == {f"sha256:{names[index]}" for index in (0, 1, 4)}
        assert not old.exists()
        assert not shell.exists()
        assert (used / "root/usr/file").exists()
        process.kill()
    removed, _ = prune_runtimes(tmp_path, runtime_in(current))
    assert [one.name for one in removed] == [f"environment {names[1]}"], "its user was killed"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", names[0], names[4], "notes"]


def test_an_environment_that_goes_while_somebody_asks_for_it_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built(tmp_path, "a" * 16)
    looks: list[bool] = []
    really = runtime_module.fcntl.flock

    def late(descriptor: int, how: int) -> None:
        if not looks:
            looks.append(True)
            prune_runtimes(tmp_path, runtime_in(tmp_path / ("b" * 16)))
        really(descriptor, how)

    monkeypatch.setattr(runtime_module.fcntl, "flock", late)
    assert hold(folder) is False
    assert looks == [True]
    monkeypatch.undo()
    built(tmp_path, "a" * 16)
    assert hold(folder) is True


def test_the_temporary_folder_of_a_killed_process_goes_at_the_next_start() -> None:
    with child(SERVE) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        sweep()
        assert folder.is_dir(), "its process lives"
        process.send_signal(signal.SIGKILL)
    assert folder.is_dir(), "nobody tidied up"
    sweep()
    assert not folder.exists()


def test_folders_that_may_be_somebody_elses_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = f"rinr-{2**22 + 1}-17"
    here = int(Path("/proc/self/ns/pid").stat().st_ino)
    kept = [f"{dead}-{here + 1:x}_server_a", "rinr-release-abc", "rinr-5", f"x{dead}-{here:x}_a"]
    kept.append(f"{temporary_prefix('mine')}abc")
    for name in (*kept, f"{dead}-{here:x}_server_abc_1"):
        (tmp_path / name).mkdir()
    sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.stop()


async def test_an_image_in_use_stays_and_one_that_is_missed_is_imported_again(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon.unix)
    factory = open_or_skip("docker")
    assert isinstance(factory, DockerFactory)
    client = connect()
    old = f"{REPOSITORY}:{'0' * 16}"
    client.api.import_image_from_data(bytes(1024), repository=REPOSITORY, tag="0" * 16)
    keep = frozenset({client.images.get(factory._image).labels[RUNTIME]})
    assert [name for name, _ in prune_images(client, keep)] == [old]
    sandbox = await factory.start(Role.EXECUTION)
    assert prune_images(client, frozenset()) == [], "a container uses it"
    assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"
    await sandbox.close()
    assert [name for name, _ in prune_images(client, frozenset())] == [factory._image], "now nothing does"
    sandbox = await factory.start(Role.EXECUTION)
    assert (await execute(sandbox, "print(2)"))["stdout"] == "2\n"
    await sandbox.close()
    client.close()
    await factory.close()
