"""The catalog: which runs, stages, artifacts, measurements and decisions exist, and the handoffs.

Every method is one short transaction. Recording the same thing again is harmless, recording a different thing
under the same name is an error. Must not know what any recorded thing means.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson
from sqlmodel import Session, col, select

from catalog.connection import Database
from catalog.digest import canonical_json
from catalog.errors import HandoffError, IdentityMismatch, StoreError
from catalog.handoff import Handoffs
from catalog.models import Artifact, Claim, Decision, Measurement, Run, Stage
from catalog.store import Ref

__all__ = ["Catalog", "HandoffError", "IdentityMismatch", "StoreError"]

RunStatus = Literal["completed", "failed", "cancelled"]


class Catalog:
    """The record of all runs in one SQLite file; threads and processes may share the file."""

    def __init__(self, url_or_path: str | Path, *, clock: Callable[[], datetime] | None = None) -> None:
        """StoreError when the file cannot be opened. `clock` returns the time in UTC, for tests."""
        self._now = clock or _utc_now
        self._database = Database(url_or_path)
        self._handoffs = Handoffs(self._database, self._now)

    # Runs

    def start_run(
        self, run_id: str, recipe: str, config: Mapping[str, Any], identities: Mapping[str, str]
    ) -> None:
        """Begin a run, or begin it again. IdentityMismatch names every identity that has changed."""
        with self._database.write() as session:
            known = session.get(Run, run_id)
            if known is None:
                session.add(
                    Run(
                        run_id=run_id,
                        recipe=recipe,
                        config=_plain(config),
                        identities=dict(identities),
                        started=self._now(),
                    )
                )
                return
            _compare(f"run {run_id!r}", known.identities, identities, "use a new run id")
            known.status, known.detail, known.finished = "running", "", None

    def finish_run(self, run_id: str, status: RunStatus, detail: str = "") -> None:
        """KeyError for an unknown run."""
        with self._database.write() as session:
            run = session.get(Run, run_id)
            if run is None:
                raise KeyError(run_id)
            run.status, run.detail, run.finished = status, detail, self._now()

    def run(self, run_id: str) -> Run | None:
        with self._database.read() as session:
            return session.get(Run, run_id)

    def runs(self) -> list[Run]:
        """All runs, the oldest first."""
        with self._database.read() as session:
            return list(session.exec(select(Run).order_by(col(Run.started), col(Run.run_id))))

    # Stages and artifacts

    def stage(self, key: str) -> Stage | None:
        """The completed stage with this key."""
        with self._database.read() as session:
            return session.get(Stage, key)

    def record_stage(
        self,
        run_id: str,
        key: str,
        name: str,
        cycle: int,
        step: int,
        role: str,
        output: Ref,
        seconds: float,
        parameters: Mapping[str, Any],
    ) -> Stage:
        """Record a completed stage. Of two that finish under one key, the first is kept and returned."""
        with self._database.write() as session:
            known = session.get(Stage, key)
            if known is not None:
                return known
            made = Stage(
                key=key,
                run_id=run_id,
                name=name,
                cycle=cycle,
                step=step,
                role=role,
                output=output.digest,
                output_kind=output.kind,
                output_size=output.size,
                seconds=seconds,
                parameters=_plain(parameters),
                created=self._now(),
            )
            session.add(made)
            return made

    def stages(self, run_id: str) -> list[Stage]:
        """Stages that this run made, in the order of completion."""
        with self._database.read() as session:
            wanted = select(Stage).where(Stage.run_id == run_id)
            return list(session.exec(wanted.order_by(col(Stage.created), col(Stage.key))))

    def record_artifact(self, ref: Ref, schema: str, made_by_stage: str) -> None:
        """The first stage that made an object stays its maker."""
        with self._database.write() as session:
            if session.get(Artifact, ref.digest) is None:
                session.add(
                    Artifact(
                        digest=ref.digest,
                        kind=ref.kind,
                        size=ref.size,
                        content_schema=schema,
                        made_by_stage=made_by_stage,
                        created=self._now(),
                    )
                )

    def artifact(self, digest: str) -> Artifact | None:
        with self._database.read() as session:
            return session.get(Artifact, digest)

    # Measurements and decisions

    def record_measurement(
        self,
        run_id: str,
        cycle: int,
        kind: str,
        split: str,
        harness: str,
        model: str,
        correct: int,
        total: int,
        valid: int,
        stage_key: str,
        detail: Mapping[str, Any],
    ) -> None:
        """Record an accuracy once. ValueError unless 0 <= correct <= valid <= total and total > 0."""
        if not (0 <= correct <= valid <= total and total > 0):
            raise ValueError(f"measurement {kind!r}: {correct} correct, {valid} valid of {total} cannot be")
        made = Measurement(
            run_id=run_id,
            cycle=cycle,
            kind=kind,
            split=split,
            harness=harness,
            model=model,
            correct=correct,
            total=total,
            valid=valid,
            stage_key=stage_key,
            detail=_plain(detail),
            created=self._now(),
        )
        name = {"run_id", "cycle", "kind", "split", "harness", "model", "stage_key"}
        with self._database.write() as session:
            known = _same(session, Measurement, made.model_dump(include=name))
            if known is None:
                session.add(made)
                return
            counts = {"correct", "total", "valid"}
            what = f"measurement {kind!r} of run {run_id!r} cycle {cycle}"
            was, now = known.model_dump(include=counts), made.model_dump(include=counts)
            _compare(what, was, now, "use a new run id")

    def measurements(self, run_id: str) -> list[Measurement]:
        """In the order of recording."""
        with self._database.read() as session:
            wanted = select(Measurement).where(Measurement.run_id == run_id)
            return list(session.exec(wanted.order_by(col(Measurement.id))))

    def record_decision(self, run_id: str, cycle: int, step: int, decision: Mapping[str, Any]) -> None:
        """Record a step's decision once."""
        with self._database.write() as session:
            known = _same(session, Decision, {"run_id": run_id, "cycle": cycle, "step": step})
            if known is None:
                made = Decision(
                    run_id=run_id, cycle=cycle, step=step, decision=_plain(decision), created=self._now()
                )
                session.add(made)
                return
            what = f"decision of run {run_id!r} cycle {cycle} step {step}"
            _compare(what, known.decision, _plain(decision), "use a new run id")

    def decisions(self, run_id: str) -> list[Decision]:
        with self._database.read() as session:
            wanted = select(Decision).where(Decision.run_id == run_id)
            return list(session.exec(wanted.order_by(col(Decision.cycle), col(Decision.step))))

    # Handoffs (catalog/handoff.py)

    def publish_request(self, run_id: str, cycle: int, request: Mapping[str, Any]) -> str:
        """Publish an immutable request and return its digest; the same content again is the same request."""
        return self._handoffs.publish_request(run_id, cycle, request)

    def request(self, digest: str) -> dict[str, Any]:
        """The content of a request. HandoffError for an unknown one."""
        return self._handoffs.request(digest)

    def claim(self, worker: str, lease_seconds: float, request: str | None = None) -> Claim | None:
        """Lease the oldest open request, or that one. None when nothing can be claimed now."""
        return self._handoffs.claim(worker, lease_seconds, request)

    def renew(self, request: str, token: int, lease_seconds: float) -> None:
        """Prolong a lease from now. HandoffError when a newer claim exists."""
        self._handoffs.renew(request, token, lease_seconds)

    def release(self, request: str, token: int) -> None:
        """Give a lease back at once, for a worker that failed in good order."""
        self._handoffs.renew(request, token, 0.0)

    def publish_result(self, request: str, token: int, result: Mapping[str, Any]) -> None:
        """Publish the one result. HandoffError for a stale token, or when a different result exists."""
        self._handoffs.publish_result(request, token, result)

    def result(self, request: str) -> dict[str, Any] | None:
        return self._handoffs.result(request)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as they come back from the database, so that a repetition compares equal."""
    return orjson.loads(canonical_json(dict(values)))


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _same(session: Session, table: Any, name: Mapping[str, Any]) -> Any:
    conditions = [getattr(table, field) == value for field, value in name.items()]
    return session.exec(select(table).where(*conditions)).first()


def _compare(what: str, known: Mapping[str, Any], now: Mapping[str, Any], fix: str) -> None:
    changed: Sequence[str] = [
        f"{field} was {known.get(field, 'absent')!r} and is now {now.get(field, 'absent')!r}"
        for field in sorted(known.keys() | now.keys())
        if known.get(field) != now.get(field)
    ]
    if changed:
        raise IdentityMismatch(f"{what} is recorded otherwise: {'; '.join(changed)}; {fix}")
