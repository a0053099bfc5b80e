"""What docs/deploy.md and deploy/ray.md tell people to type is what the command line takes."""

import re
import shlex

import pytest
import typer
from manifests import ROOT

from flows.cli import app
from flows.compose import compose_config

PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("docs/deploy.md", "deploy/ray.md")}
LOCK = (ROOT / "deploy/gpu/requirements.txt").read_text(encoding="utf-8")


def typed(program: str) -> list[list[str]]:
    """The words after a program's name in every indented line of the pages, comments left out."""
    lines = [
        shlex.split(line, comments=True)
        for page in PAGES.values()
        for line in re.sub(r"\\\n\s*", " ", page).splitlines()
        if line.startswith("    ")
    ]
    return [words[words.index(program) + 1 :] for words in lines if program in words]


def test_every_command_of_ours_is_one_and_its_settings_compose() -> None:
    group = typer.main.get_command(app)
    lines = typed("rinr")
    assert {line[0] for line in lines} == {"run", "worker"}
    for verb, *words in lines:
        if verb == "run":
            settings = [word for word in words if word not in ("...", "\\")]
            assert compose_config(settings).trainer is not None
        else:
            command = group.get_command(typer.Context(group), verb)  # type: ignore[attr-defined]
            command.make_context(verb, list(words))


def test_the_example_of_several_hosts_says_how_many_gpus_it_needs() -> None:
    [settings] = [words for verb, *words in typed("rinr") if verb == "run" and "trainer.kind=skyrl" in words]
    assert compose_config(settings).trainer.skyrl.gpus == 16


def test_every_manifest_that_is_applied_exists() -> None:
    names = [word for words in typed("kubectl") for word in words if word.endswith(".yaml")]
    assert len(set(names)) == 3
    assert [name for name in names if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("name", "pin"), [("torch", "torch"), ("vLLM", "vllm"), ("Ray", "ray"), ("SkyRL", "skyrl")]
)
def test_the_versions_in_the_page_are_those_of_the_lock(name: str, pin: str) -> None:
    [locked] = re.findall(rf"^{pin}==(\S+)", LOCK, re.MULTILINE)
    assert f"{name} {locked}" in PAGES["docs/deploy.md"]
