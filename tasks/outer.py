"""Stages of the outer recursion: publish a request, train, validate the export, consume the result.

The same functions serve the run itself (claim `inline`) and `rinr worker`; the claim's token fences a worker
whose lease was taken over (HAND-02). Must not know how training works.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from prefect import task

from catalog.digest import digest_bytes, short
from catalog.errors import HandoffError
from catalog.models import Claim
from catalog.store import Ref
from report.progress import StageBar
from rl.handoff import build_request, build_result, check_result
from rl.job_spec import Job, ValidationJob
from rl.launch import run_job, validate_export
from tasks.measure import RETRIES, put_jsonl, record_measurement
from tasks.periodic import keep_periodic, record_periodic
from tasks.session import Session, current
from tasks.stage import StageKey, run_stage
from tasks.values import Measured, Trained, Validated

TRAIN_VERSION: Final = 1
VALIDATE_VERSION: Final = 2
_RESULT_POLL_SECONDS: Final = 1.0
_NO_STEP: Final = {
    None: "",
    "no_contrast": "; no step, for the rewards of every group were equal",
    "not_finite": "; no step, for loss or gradient were not finite",
}


@task(name="import-model", **RETRIES)
async def import_model() -> Ref:
    """Take the base model M0 into the store and pin the run's identities (SCHED-07)."""
    session = current()
    model = session.import_model()
    session.begin(model)
    return model


@task(name="import-seed", **RETRIES)
async def import_seed() -> Ref:
    """The first program as an artifact: H0, the skill file of improver `skills`, or the configured one."""
    session = current()
    return session.put_harness(session.first_harness())


@task(name="publish", task_run_name="publish handoff r{cycle:04d}", **RETRIES)
async def publish(cycle: int, model: Ref, harness: Ref) -> str:
    """Publish the immutable handoff request of a finished harness phase (HAND-01). Returns its digest."""
    session = current()
    contract = session.config.rl
    request = build_request(
        run_id=session.run_id,
        cycle=cycle,
        harness=harness.digest,
        model=model.digest,
        release=session.release.digest,
        verifier=session.verifier_identity,
        runtime=session.sandboxes.identity,
        host=session.host_identity,
        guidance=digest_bytes(session.guidance.encode()),
        code=code_version(),
        contract=contract,
        cursor=(cycle - 1) * contract.updates * contract.prompts_per_batch,
        seed=session.config.seed,
    )
    return session.catalog.publish_request(session.run_id, cycle, request)


@asynccontextmanager
async def holding(request: str) -> AsyncGenerator[None]:
    """Hold the run's own claim on a request, renewed while the body runs (HAND-02)."""
    session = current()
    async with claimed(session, request, worker=f"run {session.run_id}"):
        yield


@task(name="train", task_run_name="train {request}", **RETRIES)
async def train(request: str) -> Trained:
    """Train under the request; the export is an artifact, not yet a model that counts."""
    return await train_request(current(), request)


@task(name="validate", task_run_name="validate {request}", **RETRIES)
async def validate(request: str, trained: Trained) -> None:
    """Load the export in a process of its own, measure Test, and publish the result (EXP-02, EXP-03)."""
    await validate_request(current(), request, trained)


@task(name="consume", task_run_name="consume {request}", **RETRIES)
async def consume(request: str) -> Ref:
    """The next model: only from a published result whose identities match the request (HAND-03)."""
    session = current()
    if session.catalog.result(request) is None:
        session.progress.note(f"request {short(request)} waits for a worker: rinr worker --once")
    # Workers are other processes: the catalog is all that they share, so it is asked.
    while (result := session.catalog.result(request)) is None:  # noqa: ASYNC110
        await asyncio.sleep(_RESULT_POLL_SECONDS)
    check_result(session.catalog.request(request), result, request_digest=request)
    return Ref(kind="tree", digest=result["model"], size=result["model_size"])


@asynccontextmanager
async def claimed(session: Session, request: str, worker: str) -> AsyncGenerator[None]:
    """Claim a request for the body, unless its result is there already."""
    if session.catalog.result(request) is not None:
        yield
        return
    claim = session.catalog.claim(worker, session.config.trainer.lease_seconds, request)
    if claim is None:
        raise HandoffError(f"request {short(request)} is held by another worker: wait until its lease ends")
    async with renewed(session, claim):
        yield


@asynccontextmanager
async def renewed(session: Session, claim: Claim) -> AsyncGenerator[None]:
    """Renew a claim while the body runs; give the lease back at once if the body fails."""
    lease = session.config.trainer.lease_seconds

    async def renew() -> None:
        while True:
            await asyncio.sleep(lease / 3)
            session.catalog.renew(claim.request, claim.token, lease)

    session.claims[claim.request] = claim.token
    heartbeat = asyncio.create_task(renew())
    try:
        yield
    finally:
        heartbeat.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await heartbeat
        del session.claims[claim.request]
        if session.catalog.result(claim.request) is None:
            session.catalog.release(claim.request, claim.token)


async def train_request(session: Session, request: str) -> Trained:
    """The stage `train`: its key is the request, so that a resumed run or worker trains once."""
    wanted = session.catalog.request(request)
    cycle = int(wanted["cycle"])

    async def body() -> Ref:
        job = Job(
            **_setup(session, wanted, "train"),
            base_model=_model_folder(session, wanted["model"]),
            contract=session.config.rl,
            cycle=cycle,
            cursor=wanted["cursor"],
            precision=session.config.trainer.precision,
            packing=session.config.trainer.packing,
            token_budget=session.config.trainer.token_budget,
            checkpointing=session.config.trainer.checkpointing,
            skyrl=session.config.trainer.skyrl if session.config.trainer.kind == "skyrl" else None,
        )
        total = job.contract.updates * job.contract.episodes_per_batch
        with session.progress.stage(f"r{cycle:04d} training", total=total, unit="episodes") as bar:
            result = await run_job(job, lambda event: _show(session, bar, event), fork=_forks(session))
        trained = Trained(
            export=session.store.put_tree(result.export),
            panel=session.store.put_blob(result.panel.read_bytes()),
            updates=tuple(update.model_dump(mode="json") for update in result.updates),
            evaluations=keep_periodic(session, result.evaluations),
            facts=result.model_dump(mode="json", exclude={"updates", "evaluations", "export", "panel"}),
        )
        return session.store.put_record("trained", 1, trained.model_dump(mode="json"))

    key = StageKey("train", TRAIN_VERSION, {"request": request})
    done = await run_stage(
        session.catalog, session.store, session.run_id, key, body, cycle=cycle, role="train"
    )
    trained = Trained.model_validate(session.store.get_record(done.output.digest, "trained"))
    # From the record, so that a stage that was found measures the same once more.
    record_periodic(session, wanted, request, trained, key)
    return trained


async def validate_request(session: Session, request: str, trained: Trained) -> None:
    """The stage `validate`, and the publication of the one result."""
    wanted = session.catalog.request(request)
    cycle = int(wanted["cycle"])
    key = StageKey("validate", VALIDATE_VERSION, {"request": request, "export": trained.export.digest})

    async def body() -> Ref:
        job = ValidationJob(
            **_setup(session, wanted, "validate"),
            export=session.model_folder(trained.export),
            base_model=_model_folder(session, wanted["model"]),
            panel=_panel_file(session, trained),
            vllm=session.config.trainer.vllm,
        )
        started = time.monotonic()
        total = len(session.release.split("test"))
        with session.progress.stage(f"r{cycle:04d} export Test", total=total, unit="episodes") as bar:
            result = await validate_export(
                job, lambda event: _show(session, bar, event), fork=_forks(session)
            )
        assert result.evaluation is not None
        assert result.episodes is not None
        assert result.loaded is not None
        measured = Measured(
            record=session.store.put_record("evaluation", 1, result.evaluation.model_dump(mode="json")),
            episodes=put_jsonl(session.store, result.episodes.read_bytes()),
        )
        record_measurement(
            session, "export_test", cycle, 0, trained.export, result.evaluation, measured, key, -1, started
        )
        validated = Validated(measured=measured, proof=result.loaded.model_dump(mode="json"))
        return session.store.put_record("validated", 1, validated.model_dump(mode="json"))

    done = await run_stage(
        session.catalog, session.store, session.run_id, key, body, cycle=cycle, role="export_test"
    )
    if session.catalog.result(request) is None:
        validated = Validated.model_validate(session.store.get_record(done.output.digest, "validated"))
        result = build_result(
            wanted,
            request_digest=request,
            model=trained.export.digest,
            evaluation=validated.measured.record.digest,
            model_size=trained.export.size,
            proof=validated.proof,
        )
        session.catalog.publish_result(request, session.claims[request], result)


def code_version() -> str:
    """The installed version of this program."""
    return metadata.version("rinr")


def _setup(session: Session, wanted: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a job needs to run episodes the way the run does (rl.job_spec.EpisodeSetup)."""
    config = session.config
    return {
        "harness_code": session.store.get_blob(wanted["harness"]).decode(),
        "release": str(session.release.root),
        "sandbox": session.sandboxes.kind,
        "sandbox_pool": config.sandbox.pool,
        "sandbox_packages": session.cache / "sandbox-packages",
        "runtime_cache": session.cache / "runtime",
        "sandbox_cache": session.cache,
        "budgets": config.budgets,
        "guidance": session.guidance,
        "libraries": session.runtime.libraries,
        "shell": session.shell,
        "judge": {} if session.judge is None else config.judge.model_dump(mode="json"),
        "seed": wanted["seed"],
        "concurrency": config.concurrency,
        "device": config.trainer.device,
        "threads": config.trainer.threads or None,
        "max_batch": config.model.max_batch,
        "scripted_server": config.model.command if config.model.scripted else (),
        "folder": session.folder / f"r{int(wanted['cycle']):04d}" / name,
    }


def _forks(session: Session) -> bool:
    return session.config.trainer.start == "fork"


def _model_folder(session: Session, digest: str) -> Path:
    return session.model_folder(Ref(kind="tree", digest=digest, size=0))


def _panel_file(session: Session, trained: Trained) -> Path:
    path = session.folder / f"panel-{short(trained.panel.digest, 16)}.json"
    path.write_bytes(session.store.get_blob(trained.panel.digest))
    return path


def _show(session: Session, bar: StageBar, event: Mapping[str, Any]) -> None:
    if event.get("event") == "episode":
        bar.advance(1)
    elif event.get("event") == "part":
        session.progress.note(f"SkyRL, {event['name']}: {event['seconds']:.0f} s")
    elif event.get("event") == "held":
        session.progress.note(f"scored on a GPU that is not free: {event['error']}")
    elif event.get("event") == "lost":
        session.progress.note(f"an attempt at {event['task']} was lost: {event['error']}")
    elif event.get("event") == "evaluation":
        found = f"{event['correct']} of {event['total']}" if "total" in event else f"lost: {event['lost']}"
        session.progress.note(f"Val after {event['update']} updates: {found}")
    elif event.get("event") == "update":
        session.progress.generated(int(event["generated_tokens"]))
        session.progress.note(
            f"update {event['update']} of {session.config.rl.updates}: Train reward {event['reward']:.2f} "
            f"(changing samples); {event['seconds_generate']:.0f} s of rollouts, "
            f"{event['seconds_update']:.0f} s of update{_NO_STEP[event.get('skipped')]}"
        )
