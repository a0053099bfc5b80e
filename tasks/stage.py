"""One stage: a key computed from everything that could change its result, and a digest out.

The catalog and the store are the record; Prefect shows and schedules. So the cache is the catalog: a stage
whose key is known and whose output still exists is not run again. A key that cannot be computed raises.
Must not know any algorithm.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property

from catalog.database import Catalog
from catalog.digest import digest_json, is_digest
from catalog.store import Ref, Store

Scalar = str | int | float | bool | None
running: ContextVar[str] = ContextVar("rinr_stage", default="")
"""Key of the stage whose body runs."""


@dataclass(frozen=True)
class StageKey:
    """What a stage is a function of: {stage, version, named input digests, parameters}.

    Measurements that the specification wants fresh carry run, cycle, step and role among the parameters, so
    that a resumed run finds its own result and never another comparison's.
    """

    name: str
    version: int
    """Raised by hand when the stage's meaning changes; a source hash would miss helper functions."""
    inputs: Mapping[str, str]
    """Named digests."""
    parameters: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])

    @cached_property
    def digest(self) -> str:
        for name, value in self.inputs.items():
            if not is_digest(value):
                raise ValueError(f"stage {self.name}: input {name} is {value!r}, which is no digest")
        return digest_json(
            {
                "stage": self.name,
                "version": self.version,
                "inputs": dict(self.inputs),
                "parameters": dict(self.parameters),
            }
        )


@dataclass(frozen=True)
class StageResult:
    """Where a stage's output is, and whether it had to be made."""

    output: Ref
    cached: bool
    seconds: float


async def run_stage(
    catalog: Catalog,
    store: Store,
    run_id: str,
    key: StageKey,
    body: Callable[[], Awaitable[Ref]],
    *,
    cycle: int = 0,
    step: int = 0,
    role: str = "",
) -> StageResult:
    """The stage's output, from the catalog if it stands there and still exists, else made and recorded."""
    known = catalog.stage(key.digest)
    if known is not None and store.has(known.output):
        output = Ref.model_validate(
            {"kind": known.output_kind, "digest": known.output, "size": known.output_size}
        )
        return StageResult(output=output, cached=True, seconds=known.seconds)
    started = time.monotonic()
    token = running.set(key.digest)
    try:
        output = await body()
    finally:
        running.reset(token)
    seconds = time.monotonic() - started
    catalog.record_stage(
        run_id=run_id,
        key=key.digest,
        name=key.name,
        cycle=cycle,
        step=step,
        role=role,
        output=output,
        seconds=seconds,
        parameters=dict(key.parameters) | {"inputs": dict(key.inputs)},
    )
    return StageResult(output=output, cached=False, seconds=seconds)
