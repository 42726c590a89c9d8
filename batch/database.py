"""The database: opened, locked for one owner, brought up to date, and read and written by short transactions.

Writes go through one thread, one after the other, so that no two of them meet; reads have threads of their own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from alembic import command
from alembic.config import Config
from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from slo.errors import BatchesAway, ServingError, StorageFull
from slo.settings.batch import BatchSettings

logger = logging.getLogger("expresslane.batch")

MIGRATIONS: Final = Path(__file__).with_name("migrations")
ADVISORY_LOCK: Final = 0x657870726573736C
"""Of PostgreSQL, by which two owners of one database find each other: `expressl` in ASCII."""
NUM_READERS: Final = 4
LOCK_POLL_S: Final = 0.2
_DISK_FULL: Final = "53100"
"""PostgreSQL's code."""
Got = TypeVar("Got")


class DatabaseError(RuntimeError):
    """The database cannot be used; the message names the setting at fault."""


class DatabaseInUse(DatabaseError):
    """Another process owns it."""


class OwnersLock(Protocol):
    """Held as long as its process owns the database; let go by the system when the process dies."""

    def check(self) -> None:
        """Raises DatabaseError when it may have been lost."""
        ...

    def release(self) -> None:
        """Lets go of it."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A database that this process owns."""

    engine: Engine
    lock: OwnersLock
    sessions: sessionmaker[Session]

    def close(self) -> None:
        """Lets go of it."""
        self.engine.dispose()
        self.lock.release()


class Database:
    """Transactions, once this process owns the database. Until then each raises BatchesAway."""

    def __init__(self) -> None:
        self._opened: Opened | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="batch-write")
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="batch-read")
        self.is_ours = asyncio.Event()

    async def take_over(self, settings: BatchSettings, prepare: Callable[[Session], None]) -> None:
        """Opens the database of these settings; `prepare` is the first transaction, left out where it cannot be made.

        Raises:
            DatabaseInUse: another process owns it, for longer than `lock_timeout_s`.
            DatabaseError: it cannot be opened, made or migrated.
        """
        self._opened = await asyncio.to_thread(open_database, settings)
        try:
            await self.write(prepare)
        except ServingError as error:  # a full disk must not keep an owner from telling what it has
            logger.warning("reason=not_prepared detail=%r", error.message)
        self.is_ours.set()

    async def write(self, act: Callable[[Session], Got]) -> Got:
        """`act` in a transaction: all of it is kept when this returns, and none when it raises.

        Raises:
            StorageFull: there is no room.
            BatchesAway: the database does not answer, or is not ours yet.
        """
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._transact, act)

    async def read(self, look: Callable[[Session], Got]) -> Got:
        """`look` in a transaction of its own, beside the writer. Raises BatchesAway: likewise."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._transact, look)

    def check(self) -> None:
        """Raises DatabaseError when another process may own the database by now. Blocks."""
        if self._opened is not None:
            self._opened.lock.check()

    def close(self) -> None:
        """Waits for what runs, and lets go of the database."""
        for executor in (self._writer, self._readers):
            executor.shutdown(wait=True, cancel_futures=True)
        if self._opened is not None:
            self._opened.close()

    def _transact(self, act: Callable[[Session], Got]) -> Got:
        if self._opened is None:
            raise BatchesAway("another process owns the files and batches; this one waits for it to end")
        with translated(), self._opened.sessions.begin() as session:
            return act(session)


def open_database(settings: BatchSettings) -> Opened:
    """The database of these settings, locked for this process and up to date. Blocks.

    Raises:
        DatabaseInUse: another process owns it, for longer than `lock_timeout_s`.
        DatabaseError: it cannot be opened, made or migrated.
    """
    if settings.database_url is not None:
        place, engine = "batch.database_url", _postgresql_engine(settings.database_url)
        lock_of: Callable[[], OwnersLock] = partial(_AdvisoryLock, engine, settings.lock_timeout_s)
    else:
        path = database_path(settings)
        place, engine = f"batch.path={str(path)!r}", _sqlite_engine(path)
        lock_of = partial(_FileLock, path, settings.lock_timeout_s)
    lock = None
    try:
        lock = lock_of()
        with engine.begin() as connection:
            _migrate(connection)
    except (SQLAlchemyError, OSError, DatabaseError) as error:
        if lock is not None:
            lock.release()
        engine.dispose()
        if isinstance(error, DatabaseError):
            raise
        raise DatabaseError(f"{place}: {_cause(error)}") from None
    logger.info("reason=opened dialect=%s", engine.dialect.name)
    return Opened(engine, lock, sessionmaker(engine, expire_on_commit=False))


def database_path(settings: BatchSettings) -> Path:
    """The SQLite file of these settings, in this process's environment."""
    if settings.path is not None:
        return Path(settings.path)
    data_home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data_home) / "expresslane" / "batches.sqlite3"


def _migrate(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _cause(error: SQLAlchemyError | OSError) -> str:
    """What the database says, in one line, without the statement."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(str(cause).split())


def _sqlite_engine(path: Path) -> Engine:
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # Python's driver would begin by itself, and not before a change of tables
        # WAL: readers beside the writer. FULL: what was told to a client survives a loss of power too.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _postgresql_engine(url: str) -> Engine:
    """psycopg 3, whatever the URL says of a driver."""
    rest = url.partition("://")[2]
    try:
        return create_engine(f"postgresql+psycopg://{rest}", pool_pre_ping=True)
    except ModuleNotFoundError:
        raise DatabaseError("batch.database_url: needs psycopg: install the extra `postgresql`") from None
    except SQLAlchemyError:
        raise DatabaseError("batch.database_url: no URL of a database (its text is not shown)") from None


class _FileLock:
    """Beside the SQLite file. The system lets go of it when the process dies."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(f"{path}.lock", thread_local=False)  # taken in one thread, released in another
        try:
            self._lock.acquire(timeout=timeout_s, poll_interval=LOCK_POLL_S)
        except Timeout:
            raise DatabaseInUse(
                f"batch.path={str(path)!r}: another Expresslane uses it; set another path, or batch.enabled to false"
            ) from None

    def check(self) -> None:
        """A file lock is not lost while its process lives."""

    def release(self) -> None:
        self._lock.release()


class _AdvisoryLock:
    """A lock of a PostgreSQL session, which it keeps open."""

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        deadline_s = time.monotonic() + timeout_s
        while not self._connection.scalar(text(f"SELECT pg_try_advisory_lock({ADVISORY_LOCK})")):
            if time.monotonic() > deadline_s:
                self._connection.close()
                raise DatabaseInUse("batch.database_url: another Expresslane uses it; give each a database of its own")
            time.sleep(LOCK_POLL_S)

    def check(self) -> None:
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError as error:
            raise DatabaseError(f"batch.database_url: the lock was lost: {_cause(error)}") from None

    def release(self) -> None:
        self._connection.invalidate()
        self._connection.close()


@contextmanager
def translated() -> Iterator[None]:
    """Turns what the database raises into our errors. Its text may hold a client's values, so it goes nowhere."""
    try:
        yield
    except DBAPIError as error:
        if _is_full(error.orig):
            raise StorageFull("there is no room left to keep this; delete files, or try again later") from None
        logger.warning("reason=database_failed error=%s", type(error.orig).__name__)
        raise BatchesAway("the database of files and batches does not answer") from None


def _is_full(cause: Any) -> bool:
    return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or (
        getattr(cause, "sqlstate", None) == _DISK_FULL
    )
