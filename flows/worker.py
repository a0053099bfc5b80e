"""`rinr worker`: serve handoff requests that a run published with `trainer.claim=worker` (HAND-02)."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Final

from catalog.database import Catalog
from catalog.digest import short
from flows.compose import ConfigError, validate
from report.progress import RunProgress
from tasks.config import RunConfig, StorageConfig
from tasks.outer import renewed, train_request, validate_request
from tasks.session import open_session

_POLL_SECONDS: Final = 2.0


async def serve(root: Path, cache: Path, *, once: bool) -> int:
    """Serve requests as they come; with `once`, one, or none if there is none. Returns how many.

    A failed request is given back at once and its error leaves this function.
    """
    if not (root / "catalog.db").exists():
        raise ConfigError(f"no catalog in {root}: give --root, the storage folder of the runs to serve")
    catalog = Catalog(root / "catalog.db")
    worker = f"worker {socket.gethostname()}:{os.getpid()}"
    served = 0
    with RunProgress() as progress:
        while True:
            claim = catalog.claim(worker, 60.0)
            if claim is not None:
                config = _config_of(catalog, claim.request, root, cache)
                progress.note(f"serving request {short(claim.request)} of run {config.run_id}")
                async with open_session(config, progress, owner=False) as session, renewed(session, claim):
                    await validate_request(
                        session, claim.request, await train_request(session, claim.request)
                    )
                served += 1
            if once:
                return served
            if claim is None:
                await asyncio.sleep(_POLL_SECONDS)


def _config_of(catalog: Catalog, request: str, root: Path, cache: Path) -> RunConfig:
    run = catalog.run(catalog.request(request)["run_id"])
    assert run is not None, "a request names a run of its catalog"
    storage = StorageConfig(root=str(root), cache=str(cache))
    plain = {name: value for name, value in run.config.items() if name in RunConfig.model_fields}
    return validate(plain).model_copy(update={"run_id": run.run_id, "storage": storage})
