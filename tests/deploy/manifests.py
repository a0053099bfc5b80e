"""Reads deployment manifests and holds them against the schemas of Kubernetes and of KubeRay, offline."""

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.deploy.kuberay_schema import SCHEMAS

ROOT: Final = Path(__file__).parents[2]
KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
VERSION: Final = "v1.34.0-local-strict"
"""Of Kubernetes; strict: a field that it does not know is an error."""
_KINDS: Final = {
    "PersistentVolumeClaim": "persistentvolumeclaim-v1",
    "Deployment": "deployment-apps-v1",
    "RayCluster": None,
    "RayJob": None,
}


def documents() -> dict[str, dict[str, Any]]:
    """Every manifest by file name and kind."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(KUBERNETES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            found[f"{path.name} {document['kind']}"] = document
    return found


def problems(document: dict[str, Any]) -> list[str]:
    """What its kind's schema says against it; one line each."""
    return [
        f"{error.json_path}: {error.message}" for error in _validator(document["kind"]).iter_errors(document)
    ]


@cache
def _validator(kind: str) -> Draft202012Validator:
    own = files("kubernetes_validate").joinpath("kubernetes-json-schema", VERSION)
    name = _KINDS[kind]
    text = own.joinpath(f"{name}.json") if name else SCHEMAS / f"{kind.lower()}.json"
    schema = json.loads(text.read_text())
    registry = Registry().with_resources(
        (resource.id() or "", resource)
        for resource in (
            Resource.from_contents(json.loads(own.joinpath("_definitions.json").read_text())),
            *([Resource.from_contents(schema)] if name else []),
        )
    )
    return Draft202012Validator(schema, registry=registry)


def keys(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key of every mapping in a document."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            yield from keys(inner, (*path, name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from keys(inner, (*path, place))


def renamed(document: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """A copy in which one key has a letter too many."""
    copy = json.loads(json.dumps(document))
    *before, last = path
    inside = copy
    for step in before:
        inside = inside[step]
    inside[f"{last}x"] = inside.pop(last)
    return copy


def found(document: Any, name: str) -> list[Any]:
    """All values under a key, wherever it stands."""
    if isinstance(document, dict):
        here = [document[name]] if name in document else []
        return here + [item for inner in document.values() for item in found(inner, name)]
    if isinstance(document, list):
        return [item for inner in document for item in found(inner, name)]
    return []
