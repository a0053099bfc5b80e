"""The GPU image: what it copies is there, what it installs is locked, the adapter knows those versions."""

import importlib
import re
import shlex
import sys
import tomllib
from importlib import metadata

import pytest
import yaml
from manifests import KUBERNETES, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rl.skyrl.installed import OLDEST, TOO_NEW

DOCKERFILE = ROOT / "deploy/gpu/Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
LOCK = (ROOT / "deploy/gpu/requirements.txt").read_text(encoding="utf-8")
WANTED = (ROOT / "deploy/gpu/requirements.in").read_text(encoding="utf-8")
PINS = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\$", LOCK, re.MULTILINE))


def instructions(name: str) -> list[list[str]]:
    """The words of every instruction of that name; lines that go on are joined."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in TEXT.splitlines() if not line.startswith("#")))
    return [shlex.split(line)[1:] for line in joined.splitlines() if line.startswith(f"{name} ")]


def test_everything_that_is_copied_exists_and_reaches_the_build() -> None:
    ignored = (ROOT / "deploy/gpu/Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    copied = [source for words in instructions("COPY") for source in words[:-1]]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert set(copied) == allowed


def test_every_room_is_in_the_image() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    [listed] = re.findall(r"^packages = \[(.*)\]$", project, re.MULTILINE)
    rooms = set(re.findall(r'"(\w+)"', listed))
    assert rooms <= {source for words in instructions("COPY") for source in words[:-1]}


def test_stages_follow_each_other_and_the_last_is_the_worker() -> None:
    stages = instructions("FROM")
    assert [words[2] for words in stages] == ["packages", "worker"]
    assert stages[1][0] == "packages"
    assert stages[0][0].startswith("nvidia/cuda:")


def test_the_lock_has_a_hash_for_every_package_and_holds_what_is_wanted() -> None:
    packages = re.findall(r"^\S+==\S+.*(?:\n .*)*", LOCK, re.MULTILINE)
    assert len(packages) == len(PINS) > 200
    assert [package.split()[0] for package in packages if "--hash=sha256:" not in package] == []
    for line in WANTED.splitlines():
        name = re.match(r"[A-Za-z0-9_.-]+", line)
        if line.startswith("#") or name is None:
            continue
        assert name[0] in PINS, line
        if "==" in line:
            assert PINS[name[0]] == line.partition("==")[2]
    assert {"flash-attn", "nixl"} & PINS.keys() == set(), "source only"


def test_the_lock_satisfies_what_rinr_itself_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["local"], *extras["parquet"]]
    assert len(wanted) > 20
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)]), str(requirement)


def test_the_adapter_knows_the_skyrl_of_the_image_and_the_manifests_its_ray() -> None:
    version = tuple(int(part) for part in PINS["skyrl"].split(".")[:2])
    assert OLDEST <= version < TOO_NEW
    cluster = yaml.safe_load((KUBERNETES / "raycluster.yaml").read_text())
    assert cluster["spec"]["rayVersion"] == PINS["ray"]


def test_commands_and_folders_of_the_manifests_are_the_image_s() -> None:
    [folder] = [words[0] for words in instructions("WORKDIR")]
    for name in ("worker.yaml", "rayjob.yaml"):
        assert f"{folder}/.cache" in (KUBERNETES / name).read_text()
    assert instructions("CMD") == [["[rinr,", "doctor]"]]


def test_what_stands_in_for_flash_attn_has_its_names_fails_by_name_and_is_no_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "deploy/gpu"))
    padding = importlib.import_module("flash_attn.bert_padding")
    rotary = importlib.import_module("flash_attn.ops.triton.rotary")
    for call in (padding.pad_input, padding.unpad_input, rotary.apply_rotary):
        with pytest.raises(NotImplementedError, match=r"docs/deploy\.md"):
            call(1, of="anything")
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("flash-attn")
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]
