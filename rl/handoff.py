"""The request that a finished harness phase publishes, and the check of a result against it.

Everything is pinned by digest (HAND-01); a result is consumed only if every identity is the request's
(HAND-03). Must not know who claims a request or where it is kept (`catalog.handoff`).
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from catalog.digest import is_digest
from catalog.errors import IdentityMismatch
from rl.contract import RlContract

REQUEST_VERSION: Final = 1


class Request(BaseModel):
    """What an RL stage is asked to do. Immutable: its canonical JSON's digest is its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = REQUEST_VERSION
    run_id: str
    cycle: int
    harness: str
    """Digest of the selected program, and of the stored object that holds it."""
    model: str
    """Digest of the base model's files."""
    release: str
    verifier: str
    runtime: str
    """Identity of the sandboxes: images, supervisor, limits."""
    host: str
    """Identity of the host policy: budgets, sandboxes, guidance, broker version."""
    guidance: str
    """Digest of the host's guidance text."""
    code: str
    """Version of this program."""
    contract: RlContract
    contract_digest: str
    cursor: int = 0
    """Where the draw of Train tasks begins."""
    seed: int


IDENTITIES: Final = (
    "harness",
    "model",
    "release",
    "verifier",
    "runtime",
    "host",
    "guidance",
    "code",
    "contract_digest",
)
"""The fields of a request that a result must repeat."""


def build_request(*, contract: RlContract, **fields: Any) -> dict[str, Any]:
    """The request as plain data for the catalog. Raises ValueError for a field that is no digest.

    `fields`: those of `Request` but `version`, `contract` and `contract_digest`.
    """
    request = Request(contract=contract, contract_digest=contract.digest, **fields)
    loose = [
        name for name in IDENTITIES if name not in ("code", "host") and not is_digest(getattr(request, name))
    ]
    if loose:
        raise ValueError(f"a handoff request pins by digest; not a digest: {', '.join(loose)}")
    return request.model_dump(mode="json")


def read_request(content: Mapping[str, Any]) -> Request:
    """Plain data back into a request; a tampered contract is found out. Raises `IdentityMismatch`."""
    request = Request.model_validate(content)
    if request.contract.digest != request.contract_digest:
        raise IdentityMismatch("the request's RL contract does not have the request's contract_digest")
    return request


def build_result(
    request: Mapping[str, Any], *, request_digest: str, model: str, evaluation: str, **facts: Any
) -> dict[str, Any]:
    """What a worker publishes: the request's identities, the validated export, the Test evaluation.

    `model` and `evaluation` are the digests of stored objects; `facts` are further plain values.
    """
    identities = {name: request[name] for name in IDENTITIES}
    return {
        "request": request_digest,
        "identities": identities,
        "base": request["model"],
        "model": model,
        "evaluation": evaluation,
        "validated": True,
        **facts,
    }


def check_result(request: Mapping[str, Any], result: Mapping[str, Any], *, request_digest: str) -> None:
    """Raise `IdentityMismatch`, naming every field, unless the result answers this very request."""
    found: Mapping[str, Any] = result.get("identities") or {}
    problems = [
        f"{name}: requested {request[name]}, result has {found.get(name)}"
        for name in IDENTITIES
        if found.get(name) != request[name]
    ]
    if result.get("request") != request_digest:
        problems.append(f"request: expected {request_digest}, result answers {result.get('request')}")
    if result.get("validated") is not True:
        problems.append("validated: the export was not validated")
    if result.get("model") == request["model"]:
        problems.append("model: the result is the base model")
    if problems:
        raise IdentityMismatch("the RL result does not match its request: " + "; ".join(problems))
