"""Start the flow from a command line, and answer for a run that is already finished."""

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path

import httpx
from rich.console import Console

from broker.engine.default_model import DEFAULT_MODEL, find_model
from catalog.database import Catalog
from catalog.errors import IdentityMismatch
from catalog.store import Store
from flows.prefect_server import PrefectUnavailable, own_server
from report.terminal import print_run
from report.write import REPORT, load_run, write_run_report
from rl.launch import prepare_forks
from rl.skyrl.installed import require_skyrl
from tasks.config import RunConfig, check_trainable, config_identity, new_run_id
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
    return _print(root, config.run_id)


def check_inputs(config: RunConfig) -> None:
    """What can be refused before anything is started or written: release, model, trainer, a chat endpoint."""
    check_trainable(config)
    if config.model.inference == "vllm":
        config.model.vllm.check_installed()
    if config.trainer.kind == "skyrl" and config.trainer.claim == "inline" and config.mode != "harness":
        require_skyrl()
    find(config.release)
    if config.model.inference != "endpoint" and config.model.name != DEFAULT_MODEL:
        find_model(config.model.name, Path(config.storage.cache))


def launch(config: RunConfig) -> Path:
    """Run the flow to its end in this process and print its table. Returns the path of the report.

    Raises PrefectUnavailable when the Prefect server is lost on the way.
    """
    check_inputs(config)
    named = config.model_copy(update={"run_id": config.run_id or new_run_id(config)})
    assert named.run_id is not None
    with ExitStack() as stack:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        server = None
        if not PREFECT_API_URL.value():
            server = stack.enter_context(own_server(Path(os.environ["PREFECT_HOME"])))
        if named.trainer.start == "fork" and named.mode != "harness":
            prepare_forks()
        from flows.cycle import rinr  # seconds of imports, while the server starts

        if server is not None:
            stack.enter_context(temporary_settings({PREFECT_API_URL: f"{server.url()}/api"}))
            Console(stderr=True).print(f"timeline, while this lasts: {server.url()}", highlight=False)
        try:
            asyncio.run(rinr(named))
        except httpx.TransportError as error:
            raise PrefectUnavailable(
                f"the Prefect server was lost ({error}): start yours again, or unset PREFECT_API_URL for one "
                f"of the run's own, and resume with run_id={named.run_id}"
            ) from error
    return _print(Path(config.storage.root).resolve(), named.run_id)


def _print(root: Path, run_id: str) -> Path:
    """Print a run's table. Returns the path of its report, which is written again only if it is gone."""
    report = root / run_id / REPORT
    if not report.exists():
        return write_run_report(root, run_id, Console())
    print_run(load_run(Catalog(root / "catalog.db"), Store(root / "store"), run_id), Console())
    return report
