"""The manifests keep to their schemas, and what they name is there: image, commands, volumes, resources."""

import json
import re
import shlex
from typing import Any

import pytest
import typer
from manifests import ROOT, documents, found, keys, problems, renamed

from flows.cli import app

DOCUMENTS = documents()
FREE = {"labels", "matchLabels", "clusterSelector", "limits", "requests", "rayStartParams"}
"""Mappings whose keys are the writer's own."""
IMAGE = re.compile(r"rinr-gpu:(\d+\.\d+\.\d+)")


def misspellings() -> list[tuple[str, tuple[Any, ...]]]:
    return [
        (name, path)
        for name, document in DOCUMENTS.items()
        for path in keys(document)
        if not FREE & set(path[:-1]) and path != ("kind",)
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_manifest_keeps_to_its_schema(name: str) -> None:
    assert problems(DOCUMENTS[name]) == []


def test_a_misspelt_field_anywhere_in_a_manifest_is_found() -> None:
    cases = misspellings()
    assert len(cases) > 120
    assert [(name, path) for name, path in cases if not problems(renamed(DOCUMENTS[name], path))] == []


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("raycluster.yaml RayCluster", ("spec", "workerGroupSpecs", 0, "replicas"), "1"),
        ("raycluster.yaml RayCluster", ("spec", "rayVersion"), 2.56),
        ("rayjob.yaml RayJob", ("spec", "entrypointResources"), {"rinr": 1}),
        ("worker.yaml Deployment", ("spec", "replicas"), "one"),
        ("storage.yaml PersistentVolumeClaim", ("spec", "accessModes"), "ReadWriteMany"),
    ],
)
def test_a_value_of_the_wrong_type_is_found(name: str, path: tuple[Any, ...], value: object) -> None:
    document = json.loads(json.dumps(DOCUMENTS[name]))
    *before, last = path
    inside = document
    for step in before:
        inside = inside[step]
    inside[last] = value
    assert problems(document)


def test_gpus_are_counted_in_one_place_of_each_manifest_and_nowhere_else() -> None:
    counts = {name: len(found(document, "nvidia.com/gpu")) for name, document in DOCUMENTS.items()}
    assert counts == {
        "raycluster.yaml RayCluster": 1,
        "rayjob.yaml RayJob": 0,
        "storage.yaml PersistentVolumeClaim": 0,
        "worker.yaml Deployment": 1,
    }
    for document in DOCUMENTS.values():
        assert "num-gpus" not in json.dumps(document), "KubeRay takes it from the limits"


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("nodes", [1, 3])
def test_any_number_of_gpus_and_hosts_is_a_change_of_those_two_numbers(nodes: int, gpus: int) -> None:
    document = json.loads(json.dumps(DOCUMENTS["raycluster.yaml RayCluster"]))
    [group] = document["spec"]["workerGroupSpecs"]
    group["replicas"] = nodes
    [container] = group["template"]["spec"]["containers"]
    container["resources"]["limits"]["nvidia.com/gpu"] = gpus
    assert problems(document) == []


def commands() -> list[list[str]]:
    """What the pods run of ours."""
    lines = [
        container["command"]
        for name in DOCUMENTS
        for container in _containers(name)
        if "command" in container
    ]
    lines.append(shlex.split(DOCUMENTS["rayjob.yaml RayJob"]["spec"]["entrypoint"]))
    return [line[line.index("rinr") + 1 :] for line in lines]


def _containers(name: str) -> list[dict[str, Any]]:
    pods = [*found(DOCUMENTS[name], "containers"), *found(DOCUMENTS[name], "initContainers")]
    return [container for group in pods for container in group]


def test_every_command_is_one_of_the_command_line_s_with_its_own_options() -> None:
    group = typer.main.get_command(app)
    lines = commands()
    assert len(lines) == 3
    for verb, *arguments in lines:
        command = group.get_command(typer.Context(group), verb)  # type: ignore[attr-defined]
        assert command is not None, verb
        command.make_context(verb, list(arguments))


def test_all_pods_use_one_image_whose_version_is_the_project_s() -> None:
    images = [image for document in DOCUMENTS.values() for image in found(document, "image")]
    assert len(images) == 4
    [image] = set(images)
    tag = IMAGE.fullmatch(image)
    assert tag is not None
    assert f'version = "{tag[1]}"' in (ROOT / "pyproject.toml").read_text()
    assert f"-t {image} " in (ROOT / "deploy/gpu/Dockerfile").read_text()


def test_volumes_mounts_and_selectors_name_what_there_is() -> None:
    claim = DOCUMENTS["storage.yaml PersistentVolumeClaim"]["metadata"]["name"]
    pods = [pod for document in DOCUMENTS.values() for pod in found(document, "spec") if "containers" in pod]
    assert len(pods) == 3
    for pod in pods:
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == volumes
        assert found(pod, "claimName") == [claim]
    cluster, job = DOCUMENTS["raycluster.yaml RayCluster"], DOCUMENTS["rayjob.yaml RayJob"]
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    wanted = json.loads(job["spec"]["entrypointResources"])
    # The operator puts the parameter's text, quotation marks included, into a shell's line.
    offered = [
        json.loads(shlex.split(group["rayStartParams"]["resources"])[0])
        for group in cluster["spec"]["workerGroupSpecs"]
    ]
    assert offered == [wanted]


def test_secrets_are_named_and_never_written() -> None:
    for name, document in DOCUMENTS.items():
        assert not found(document, "env"), name
        assert document["kind"] != "Secret"
        for reference in found(document, "secretRef"):
            assert reference == {"name": "rinr-keys", "optional": True}


def test_only_hosts_of_episodes_are_privileged() -> None:
    privileged = [
        container["name"]
        for name in DOCUMENTS
        for container in _containers(name)
        if container.get("securityContext", {}).get("privileged")
    ]
    assert sorted(privileged) == ["doctor", "ray-worker", "worker"]
