"""Reduces KubeRay's custom resource definitions to the schemas that the manifests are held against.

    python -m tests.deploy.kuberay_schema FOLDER      # with ray.io_rayclusters.yaml and ray.io_rayjobs.yaml

Of version v1 the structure is kept, words are not. Pods, services and metadata, which make up most of a
definition, become references to Kubernetes' own schemas. As in those, a field that is not named is an error.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

SCHEMAS: Final = Path(__file__).parent / "kuberay"
KUBERNETES: Final = "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s."
"""Where the definitions of the package kubernetes-validate are known by name."""
_KEPT: Final = ("type", "required", "enum", "pattern", "minimum", "maximum", "anyOf")
_KNOWN: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (frozenset({"apiVersion", "kind", "metadata", "spec"}), "api.core.v1.Service"),
    (frozenset({"metadata", "spec"}), "api.core.v1.PodTemplateSpec"),
    (frozenset({"configMapKeyRef", "fieldRef", "secretKeyRef"}), "api.core.v1.EnvVarSource"),
    (frozenset({"configMapRef", "prefix", "secretRef"}), "api.core.v1.EnvFromSource"),
    (frozenset({"claims", "limits", "requests"}), "api.core.v1.ResourceRequirements"),
    (frozenset({"capabilities", "privileged", "runAsUser"}), "api.core.v1.SecurityContext"),
    (frozenset({"mountPath", "subPath", "readOnly"}), "api.core.v1.VolumeMount"),
)
"""Fields by which a part of Kubernetes' own is recognised."""
_META: Final = {
    "$ref": f"{KUBERNETES.removesuffix('io.k8s.')}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
}


def reduced(schema: Mapping[str, Any], *, root: bool = False) -> dict[str, Any]:
    """The structure of one schema."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    for fields, name in _KNOWN:
        if not root and fields <= properties.keys():
            return {"$ref": f"{KUBERNETES}{name}"}
    kept: dict[str, Any] = {name: schema[name] for name in _KEPT if name in schema}
    if "required" in kept:
        # What has a default is there by the time that a cluster validates.
        kept["required"] = [name for name in kept["required"] if "default" not in properties[name]]
    if properties:
        kept["properties"] = {name: reduced(inner) for name, inner in sorted(properties.items())}
        kept["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), Mapping):
        kept["additionalProperties"] = reduced(schema["additionalProperties"])
    if "items" in schema:
        kept["items"] = reduced(schema["items"])
    return kept


def resource_schema(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a kind, as the definition's version v1 has it."""
    spec = definition["spec"]
    [version] = [item for item in spec["versions"] if item["name"] == "v1"]
    found = reduced(version["schema"]["openAPIV3Schema"], root=True)
    found["properties"] |= {
        "apiVersion": {"enum": [f"{spec['group']}/v1"]},
        "kind": {"enum": [spec["names"]["kind"]]},
        "metadata": _META,
    }
    # What the operator writes is no part of a manifest.
    del found["properties"]["status"]
    return {**found, "required": ["apiVersion", "kind", "metadata", "spec"]}


def main(folder: Path) -> None:
    SCHEMAS.mkdir(exist_ok=True)
    for name in ("raycluster", "rayjob"):
        definition = yaml.safe_load((folder / f"ray.io_{name}s.yaml").read_text(encoding="utf-8"))
        text = json.dumps(resource_schema(definition), indent=1)
        (SCHEMAS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
