"""The tables of the catalog: the nouns of a run on one screen. Must not know what any of them means.

Rows are written once, except a run's status and a claim's expiry. Times are UTC.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, Column, DateTime, Dialect, TypeDecorator, UniqueConstraint
from sqlmodel import Field, SQLModel


class UtcTime(TypeDecorator[datetime]):
    """A time with its zone; SQLite forgets zones, so only UTC goes in and UTC comes out."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class Run(SQLModel, table=True):
    """One run of the schedule, or a part of it."""

    run_id: str = Field(primary_key=True)
    recipe: str
    config: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    identities: dict[str, str] = Field(sa_column=Column(JSON, nullable=False))
    """Digest or name of everything pinned: release, verifier, runtime, model, ..."""
    status: str = "running"
    """running, completed, failed or cancelled."""
    detail: str = ""
    started: datetime = Field(sa_type=UtcTime)
    finished: datetime | None = Field(default=None, sa_type=UtcTime)


class Stage(SQLModel, table=True):
    """One completed stage. The key holds everything that its output depends on."""

    key: str = Field(primary_key=True)
    run_id: str = Field(foreign_key="run.run_id", index=True)
    """The run that made it (CONT-06)."""
    name: str
    cycle: int
    step: int
    role: str
    output: str
    """Digest."""
    output_kind: str
    output_size: int
    seconds: float
    parameters: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    created: datetime = Field(sa_type=UtcTime)


class Artifact(SQLModel, table=True):
    """One object of the store that a stage made."""

    digest: str = Field(primary_key=True)
    kind: str
    size: int
    content_schema: str
    made_by_stage: str = Field(index=True)
    """A stage key; not a foreign key, for the artifact is recorded before its stage completes."""
    created: datetime = Field(sa_type=UtcTime)


class Measurement(SQLModel, table=True):
    """One accuracy with its denominators (REP-01)."""

    __table_args__ = (UniqueConstraint("run_id", "cycle", "kind", "split", "harness", "model", "stage_key"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(foreign_key="run.run_id", index=True)
    cycle: int
    kind: str
    """Which of the boundaries of SCHED-08 it was taken at."""
    split: str
    harness: str
    model: str
    correct: int
    total: int
    """Tasks, never fewer than the split has."""
    valid: int
    """Tasks with a first answer of valid format."""
    stage_key: str
    detail: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    created: datetime = Field(sa_type=UtcTime)


class Decision(SQLModel, table=True):
    """What a harness step decided and why (SEL-09)."""

    __table_args__ = (UniqueConstraint("run_id", "cycle", "step"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(foreign_key="run.run_id", index=True)
    cycle: int
    step: int
    decision: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    created: datetime = Field(sa_type=UtcTime)


class HandoffRequest(SQLModel, table=True):
    """An immutable request of a finished harness phase, named by the digest of its content (HAND-01)."""

    digest: str = Field(primary_key=True)
    run_id: str = Field(foreign_key="run.run_id", index=True)
    cycle: int
    request: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    created: datetime = Field(sa_type=UtcTime)


class Claim(SQLModel, table=True):
    """A worker's lease on a request. The highest token holds it; every lower one is fenced off."""

    request: str = Field(primary_key=True, foreign_key="handoffrequest.digest")
    token: int = Field(primary_key=True)
    """1 for the first claim of a request, then one more each time."""
    worker: str
    expires: datetime = Field(sa_type=UtcTime)
    created: datetime = Field(sa_type=UtcTime)


class HandoffResult(SQLModel, table=True):
    """The one result of a request."""

    request: str = Field(primary_key=True, foreign_key="handoffrequest.digest")
    token: int
    worker: str
    digest: str
    """Of the result's content."""
    result: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    created: datetime = Field(sa_type=UtcTime)


TABLES = [
    SQLModel.metadata.tables[name]
    for name in (
        "run",
        "stage",
        "artifact",
        "measurement",
        "decision",
        "handoffrequest",
        "claim",
        "handoffresult",
    )
]
