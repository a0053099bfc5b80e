"""Start the flow from a command line, and answer for a run that is already finished."""

import asyncio
from pathlib import Path

from rich.console import Console

from broker.engine.default_model import DEFAULT_MODEL, find_model
from catalog.database import Catalog
from catalog.errors import IdentityMismatch
from catalog.store import Store
from report.terminal import print_run
from report.write import REPORT, load_run, write_run_report
from tasks.config import RunConfig, config_identity, new_run_id
from verifier.release import find


def finished_run(config: RunConfig) -> Path | None:
    """The report of a completed run with this id, printed from the catalog; None if there is work to do.

    Nothing is started and no model is called. IdentityMismatch if the run was made with other settings.
    """
    root = Path(config.storage.root).resolve()
    if config.run_id is None or not (root / "catalog.db").exists():
        return None
    run = Catalog(root / "catalog.db").run(config.run_id)
    if run is None or run.status != "completed":
        return None
    if run.identities.get("config") != config_identity(config):
        raise IdentityMismatch(
            f"run {config.run_id} was made with other settings: give the same ones, or choose another run_id"
        )
    report = root / config.run_id / REPORT
    if not report.exists():
        return write_run_report(root, config.run_id, Console())
    print_run(load_run(Catalog(root / "catalog.db"), Store(root / "store"), config.run_id), Console())
    return report


def check_inputs(config: RunConfig) -> None:
    """What can be refused before anything is started or written: the release and a named model folder."""
    find(config.release)
    if config.model.inference != "endpoint" and config.model.name != DEFAULT_MODEL:
        find_model(config.model.name, Path(config.storage.cache))


def launch(config: RunConfig) -> Path:
    """Run the flow to its end in this process and print its table. Returns the path of the report."""
    check_inputs(config)
    from flows.cycle import rinr  # Prefect takes seconds to import

    named = config.model_copy(update={"run_id": config.run_id or new_run_id(config)})
    assert named.run_id is not None
    try:
        asyncio.run(rinr(named))
    except Exception as error:
        # Ctrl-C ends Prefect's own server too, and its absence is then what Prefect complains of.
        ended = Catalog(Path(config.storage.root).resolve() / "catalog.db").run(named.run_id)
        if ended is not None and ended.status == "cancelled":
            raise KeyboardInterrupt from error
        raise
    return write_run_report(Path(config.storage.root).resolve(), named.run_id, Console())
