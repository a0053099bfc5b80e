"""The execution environment: pinned, the same on both back ends, public, and extended by one file."""

import asyncio
import json
import os
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import broker.broker
from broker.broker import host_identity
from broker.budgets import Budgets
from broker.sandbox import runtime as runtime_module
from broker.sandbox.base import DEFAULT_LIMITS, SandboxFactory, identity_of
from broker.sandbox.bubblewrap import BubblewrapFactory
from broker.sandbox.docker import DockerFactory
from broker.sandbox.runtime import Runtime, build_runtime
from catalog.digest import digest_json
from tests.fixtures.fake_sandbox import FakeFactory
from tests.fixtures.sandbox_probe import CACHE, SMALL, execute, execution, sandbox_runtime
from tests.fixtures.sandboxes import real_runtime, real_sandboxes

ROOT = Path(__file__).parents[2]

LOOK_AROUND = """
import hashlib, json, os, resource, sys
left_out = {'/proc', '/sys', '/dev', '/work', '/tmp', '/lake', '/assets', '/rinr'}
# Docker puts these into every container.
left_out |= {'/.dockerenv', '/etc/hosts', '/etc/hostname', '/etc/resolv.conf', '/etc/mtab'}
seen = hashlib.sha256()
count = 0
for folder, folders, names in os.walk('/'):
    folders[:] = sorted(name for name in folders if os.path.join(folder, name) not in left_out)
    for path in sorted(os.path.join(folder, name) for name in names):
        if path not in left_out:
            with open(path, 'rb') as file:
                content = hashlib.file_digest(file, 'sha256').hexdigest()
            seen.update(f'{path} {os.stat(path).st_mode & 0o7777:o} {content}'.encode())
            count += 1
print(json.dumps({
    'files': [count, seen.hexdigest()],
    'python': [sys.version, sys.executable, sys.path, list(sys.flags)],
    'environment': {k: v for k, v in sorted(os.environ.items()) if k not in ('PWD', 'HOSTNAME')},
    'place': [os.getcwd(), os.uname().nodename, os.getuid(), os.getgid(), os.umask(0o22)],
    'limits': [resource.getrlimit(getattr(resource, 'RLIMIT_' + name))
               for name in ('AS', 'FSIZE', 'NOFILE', 'CORE', 'CPU')],
    'disks': [os.statvfs(path).f_blocks * os.statvfs(path).f_frsize
              for path in ('/work', '/tmp', '/dev/shm')],
}))
"""


async def looks_like(factory: SandboxFactory) -> dict[str, object]:
    async with execution(factory) as sandbox:
        observation = await execute(sandbox, LOOK_AROUND, 60)
    await factory.close()
    assert observation["error"] == ""
    return json.loads(observation["stdout"])


@pytest.mark.spec("HOST-02")
async def test_both_back_ends_show_the_same_environment() -> None:
    first = await looks_like(real_sandboxes("bubblewrap"))
    second = await looks_like(real_sandboxes("docker"))
    assert first == second


@pytest.mark.slow
async def test_the_image_of_the_dockerfile_is_the_same_environment_again() -> None:
    imported = await looks_like(real_sandboxes("docker"))
    name = f"rinr-test:{os.getpid()}"
    build = await asyncio.create_subprocess_exec(
        str(ROOT / "deploy/build-image"), name, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, complaint = await build.communicate()
    assert build.returncode == 0, complaint.decode()
    assert printed.decode().strip() == name
    try:
        built = DockerFactory(real_runtime(), CACHE, DEFAULT_LIMITS, image=name)
        assert await looks_like(built) == imported
    finally:
        remove = await asyncio.create_subprocess_exec(
            "docker", "rmi", name, stdout=asyncio.subprocess.DEVNULL
        )
        await remove.wait()


async def test_the_libraries_of_the_lock_work_and_are_the_public_inventory(sandboxes: SandboxFactory) -> None:
    code = """
import numpy, pandas, scipy.stats, statsmodels.api as sm
from Bio.Seq import Seq
frame = pandas.DataFrame({'x': numpy.arange(9.0), 'y': 2 * numpy.arange(9.0) + 1})
fit = sm.OLS(frame.y, sm.add_constant(frame.x)).fit()
p = scipy.stats.fisher_exact([[8, 2], [1, 5]])[1]
print(Seq('ATGGCC').translate(), round(float(fit.params['x']), 6), p < 0.05)
import importlib.metadata
print(sorted(f'{one.name} {one.version}' for one in importlib.metadata.distributions()))
"""
    async with execution(sandboxes) as sandbox:
        observation = await execute(sandbox, code, 60)
    assert observation["error"] == ""
    result, inside = observation["stdout"].splitlines()
    assert result == "MA 2.0 True"
    told = sorted(name.replace("_", "-") for name in real_runtime().libraries)
    assert told == sorted(name.replace("_", "-") for name in eval(inside))
    assert {"biopython", "numpy", "pandas", "scipy", "statsmodels"} <= {name.split()[0] for name in told}


def test_the_environment_is_found_again_and_its_digest_is_over_every_file() -> None:
    first, again = sandbox_runtime(), sandbox_runtime.__wrapped__()
    assert first == again
    contents = {
        path: facts
        for path, facts in runtime_module.contents(first.root)
        if not path.endswith(("__pycache__", ".pyc"))
    }
    assert digest_json(contents) == first.digest
    assert "opt/rinr/broker/sandbox/supervisor.py" in contents


def wheel(folder: Path, name: str, version: str = "1.0", needs: str = "") -> Path:
    """A pure-Python wheel, made without a build tool."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    facts = f"{name}-{version}.dist-info"
    requirement = f"Requires-Dist: {needs}\n" if needs else ""
    files = {
        f"{name}.py": "VALUE = 42\n",
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirement}",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
        archive.writestr(
            f"{facts}/RECORD", "".join(f"{inside},,\n" for inside in [*files, f"{facts}/RECORD"])
        )
    return path


def add_packages(folder: Path, *lines: str) -> "subprocess.CompletedProcess[str]":
    """What `./run` does with a user's file, without a network."""
    uv = shutil.which(str(CACHE / "uv/bin/uv")) or shutil.which("uv")
    if uv is None:
        pytest.skip("no uv on this machine")
    (folder / "sandbox-packages.txt").write_text("".join(f"{line}\n" for line in lines))
    script, locked = str(ROOT / "deploy/add-packages"), str(CACHE / "sandbox-packages.txt")
    command = [script, uv, str(ROOT / ".venv/bin/python"), "packages", "sandbox-packages.txt", locked]
    environment = {**os.environ, "UV_OFFLINE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
async def test_one_file_adds_a_package_and_changes_the_identity(tmp_path: Path) -> None:
    shutil.copytree(CACHE / "sandbox-packages", tmp_path / "packages", copy_function=os.link)
    wheel(tmp_path, "tinyscience", needs="numpy")
    done = await asyncio.to_thread(add_packages, tmp_path, "./tinyscience-1.0-py3-none-any.whl")
    assert done.returncode == 0, done.stderr
    extended = await asyncio.to_thread(build_runtime, tmp_path / "packages", tmp_path / "runtime")
    assert set(extended.libraries) - set(sandbox_runtime().libraries) == {"tinyscience 1.0"}
    assert extended.digest != sandbox_runtime().digest
    factory = BubblewrapFactory(extended, tmp_path, SMALL)
    async with execution(factory) as sandbox:
        seen = await execute(sandbox, "import tinyscience; print(tinyscience.VALUE)")
        assert (seen["stdout"], seen["error"]) == ("42\n", "")
    await factory.close()
    assert str(tmp_path) not in "".join(
        path.read_text() for path in (extended.root / "opt/packages/tinyscience-1.0.dist-info").iterdir()
    ), "where it came from is no part of the environment"


def test_a_users_file_cannot_move_what_the_lock_pins(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    wheel(tmp_path, "numpy", "0.1")
    done = add_packages(tmp_path, "./numpy-0.1-py3-none-any.whl")
    assert done.returncode != 0
    assert "numpy" in done.stderr
    assert list((tmp_path / "packages").glob("numpy*")) == []


def test_each_part_of_the_runtime_changes_its_identity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime = sandbox_runtime()

    def of(
        runtime: Runtime = runtime, kind: str = "docker", filters: bytes = b"a", limits: Any = SMALL
    ) -> str:
        return identity_of(kind, runtime.identity, filters, limits)

    assert of() == of(replace(runtime))
    others = [
        of(replace(runtime, digest="sha256:other")),
        of(replace(runtime, library_path="/lib")),
        of(replace(runtime, python="/usr/bin/python")),
        of(kind="bubblewrap"),
        of(filters=b"other"),
        of(limits=DEFAULT_LIMITS),
    ]
    assert len({of(), *others}) == 1 + len(others)
    # The supervisor: another text gives another root, and so another digest.
    shutil.copytree(ROOT / "broker/sandbox", tmp_path / "sandbox")
    with (tmp_path / "sandbox/supervisor.py").open("a") as file:
        file.write("# changed\n")
    packages = CACHE / "sandbox-packages"
    before = runtime_module._key(packages)
    monkeypatch.setattr(runtime_module, "_HERE", tmp_path / "sandbox")
    assert runtime_module._key(packages) != before


def test_each_part_of_the_host_changes_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    sandboxes = FakeFactory()
    base = host_identity(sandboxes, Budgets(), "guidance", ("numpy 2",))
    assert base == host_identity(FakeFactory(), Budgets(), "guidance", ("numpy 2",))
    others = [
        host_identity(sandboxes, Budgets(model_calls=3), "guidance", ("numpy 2",)),
        host_identity(sandboxes, Budgets(), "other", ("numpy 2",)),
        host_identity(sandboxes, Budgets(), "guidance", ("numpy 3",)),
    ]
    monkeypatch.setattr(broker.broker, "BROKER_VERSION", broker.broker.BROKER_VERSION + 1)
    others.append(host_identity(sandboxes, Budgets(), "guidance", ("numpy 2",)))
    monkeypatch.undo()
    monkeypatch.setattr(sandboxes, "identity", "sha256:other")
    others.append(host_identity(sandboxes, Budgets(), "guidance", ("numpy 2",)))
    assert len({base, *others}) == 1 + len(others)
