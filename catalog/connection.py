"""How the catalog talks to SQLite: WAL, foreign keys, short transactions, one line when it cannot.

Must not know what the tables mean.
"""

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.exc import DatabaseError, IntegrityError
from sqlalchemy.pool import NullPool
from sqlmodel import Session, SQLModel, create_engine

from catalog import models
from catalog.errors import StoreError

SCHEMA_VERSION: Final = 1
_BUSY_SECONDS: Final = 60


class Database:
    """Sessions on one SQLite file. Usable from many threads and processes: no connection is kept open."""

    def __init__(self, url_or_path: str | Path) -> None:
        text = str(url_or_path)
        self.url = text if "://" in text else f"sqlite:///{text}"
        if "://" not in text:
            _make_folder(Path(text).parent)
        engine = create_engine(self.url, poolclass=NullPool, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        self._reading = engine
        # A transaction that reads and then writes must hold the write lock from its start.
        self._writing = engine.execution_options(begin="BEGIN IMMEDIATE")
        self._create_tables()

    def read(self) -> contextlib.AbstractContextManager[Session]:
        return self._session(writes=False)

    def write(self) -> contextlib.AbstractContextManager[Session]:
        """Commits at the end of the block, rolls back when it raises."""
        return self._session(writes=True)

    @contextlib.contextmanager
    def _session(self, *, writes: bool) -> Generator[Session]:
        with (
            self._naming(),
            Session(self._writing if writes else self._reading, expire_on_commit=False) as session,
        ):
            yield session
            if writes:
                session.commit()

    def _create_tables(self) -> None:
        with self._naming(), self._writing.begin() as connection:
            version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
            if version > SCHEMA_VERSION:
                known = f"this program knows {SCHEMA_VERSION}: upgrade rinr"
                raise StoreError(f"{self.url}: schema {version}, {known}")
            SQLModel.metadata.create_all(connection, tables=models.TABLES)
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextlib.contextmanager
    def _naming(self) -> Generator[None]:
        try:
            yield
        except IntegrityError:
            # A caller's bug, for example a stage of an unknown run: it keeps its trace.
            raise
        except DatabaseError as error:
            fix = "check the disk, or choose another folder"
            raise StoreError(f"catalog {self.url}: {error.orig}; {fix}") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror}; choose another storage folder") from None


def _prepare(connection: Any, _: Any) -> None:
    # The driver's own transaction handling is off: `_begin` says how each one starts.
    connection.isolation_level = None
    for pragma in ("busy_timeout = 60000", "journal_mode = WAL", "foreign_keys = ON", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
