"""Mutations tried by hand, each found by a test here: no lock; a lock that is not let go; a column without a migration;
tables made outside the migration's transaction; a full disk told as an absent database."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import OperationalError

from batch import database
from batch.database import Database, DatabaseError, DatabaseInUse, database_path, open_database, translated
from batch.owner import BatchOwner
from batch.tables import Base
from slo.batch import LineAnswer, LineCall, Listing
from slo.errors import BatchesAway, ServingError, StorageFull
from slo.settings.batch import BatchSettings
from tests.batch.scene import Clock, FakeDesk, Scene, jsonl, line, scene, settings_of


def settings(path: Path) -> BatchSettings:
    return BatchSettings(path=str(path), lock_timeout_s=0.1)


def test_migrated_database_has_the_tables_that_the_code_expects(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    open_database(settings(path)).close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_opened_again_it_is_what_it_was(tmp_path: Path) -> None:
    for _ in range(2):
        open_database(settings(tmp_path / "deep" / "er" / "a.sqlite3")).close()


def test_second_owner_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    first = open_database(settings(path))
    with pytest.raises(DatabaseInUse, match=rf"batch.path='{path}': another Expresslane uses it"):
        open_database(settings(path))
    first.close()
    open_database(settings(path)).close()


def test_killed_owner_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    program = (
        "import os, signal; from batch.database import open_database; from slo.settings.batch import BatchSettings; "
        f"kept = open_database(BatchSettings(path={str(path)!r})); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2]).returncode == -9
    open_database(settings(path)).close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "unable to open database file"),
        (lambda path: path.write_text("no database, but a text that is long enough" * 100), "file is not a database"),
        (lambda path: path.parent.rmdir() or path.parent.write_text(""), "File exists"),
    ],
)
def test_place_that_is_none_is_told_with_its_setting(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "in" / "a.sqlite3"
    path.parent.mkdir()
    make(path)
    with pytest.raises(DatabaseError, match=rf"^batch.path='{path}': .*{message}"):
        open_database(settings(path))


def test_default_place_is_the_users_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert database_path(BatchSettings()) == Path("/home/me/.local/share/expresslane/batches.sqlite3")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert database_path(BatchSettings()) == Path("/data/expresslane/batches.sqlite3")


def test_migration_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrations = tmp_path / "migrations"
    (migrations / "versions").mkdir(parents=True)
    (migrations / "env.py").write_text((database.MIGRATIONS / "env.py").read_text())
    (migrations / "versions" / "bad.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\nrevision, down_revision = 'x', None\n"
        "def upgrade():\n    op.create_table('half', sa.Column('a', sa.Integer))\n    op.execute('nonsense')\n"
    )
    path = tmp_path / "a.sqlite3"
    with monkeypatch.context() as patched:
        patched.setattr(database, "MIGRATIONS", migrations)
        with pytest.raises(DatabaseError, match="syntax error"):
            open_database(settings(path))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    open_database(settings(path)).close()


class Disk:
    """SQLite's own limit of pages stands for the disk's end: what it raises is the same. For every connection."""

    def __init__(self, s: Scene) -> None:
        self._max_pages = 10**9
        self._scene = s
        assert s.owner._database._opened is not None
        event.listen(s.owner._database._opened.engine, "begin", self._limit)

    def _limit(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={self._max_pages}")

    async def fill(self, num_left: int) -> None:
        """So many pages are left."""
        self._max_pages = num_left + await self._scene.owner._database.read(
            lambda session: int(session.scalar(text("PRAGMA page_count")) or 0)
        )

    def empty(self) -> None:
        """There is room again."""
        self._max_pages = 10**9


async def test_owner_stands_by_while_another_has_the_database_and_goes_on_when_that_is_gone(tmp_path: Path) -> None:
    values = settings_of(tmp_path, lock_timeout_s=0.1)
    async with scene(values) as s:
        begun = await s.half_way(jsonl(*(line(f"line-{n}") for n in range(20))))
        standby, desk = Database(), FakeDesk()
        owner = BatchOwner(standby, desk, values)
        with pytest.raises(DatabaseInUse):
            await standby.take_over(values.batch, owner.prepare)
        with pytest.raises(BatchesAway, match="another process owns"):
            await owner.batch("chat", begun.id)
        owner.check()
        assert not desk.calls
    await standby.take_over(values.batch, owner.prepare)
    await Scene(owner, desk, Clock(), values).ended(begun)
    assert len(desk.calls) == 10
    await owner.close()


async def test_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    async with scene(settings_of(tmp_path)) as s:
        disk = Disk(s)
        batch = await s.ended(await s.begin(jsonl(*(line(f"line-{n}") for n in range(20)))))
        await disk.fill(num_left=8)
        with pytest.raises(StorageFull):
            await s.upload(b"x" * 200_000)
        assert len(await s.results(batch.output_file_id)) == 20
        assert len((await s.owner.list_files("chat", Listing(None, 9), None)).data) == 2
        disk.empty()
        await s.upload(b"x" * 200_000)


async def test_results_wait_until_there_is_room_again(tmp_path: Path) -> None:
    def long(_: LineCall) -> LineAnswer:
        return LineAnswer(200, json.dumps({"text": "y" * 40_000}), None, 1)

    async with scene(settings_of(tmp_path, max_in_flight=2), FakeDesk(long)) as s:
        disk = Disk(s)
        s.desk.gate.clear()
        begun = await s.begin(jsonl(*(line(f"line-{n}") for n in range(6))))
        await s.until(lambda: s.desk.num_in_flight == 2)
        await disk.fill(num_left=2)
        s.desk.gate.set()
        await s.until(lambda: s.desk.num_in_flight == 0)
        await asyncio.sleep(0.1)
        assert len(s.desk.calls) == 2, "no line is begun whose result would have no place"
        assert (await s.owner.batch("chat", begun.id)).request_counts.completed == 0
        disk.empty()
        batch = await s.ended(begun)
        output = await s.results(batch.output_file_id)
    assert len(output) == 6
    assert s.desk.asked == {f"line-{n}": 1 for n in range(6)}


async def test_outage_of_the_database_costs_a_batch_nothing_but_time(tmp_path: Path) -> None:
    names = [f"line-{n}" for n in range(20)]
    is_out = False

    def fail(_: Connection) -> None:
        if is_out:
            raise OperationalError("BEGIN", {}, sqlite3.OperationalError("disk I/O error"))

    async with scene(settings_of(tmp_path)) as s:
        assert s.owner._database._opened is not None
        begun = await s.half_way(jsonl(*(line(name) for name in names)))
        event.listen(s.owner._database._opened.engine, "begin", fail)
        is_out = True
        s.desk.gate.set()
        with pytest.raises(BatchesAway):
            await s.owner.batch("chat", begun.id)
        await s.until(lambda: s.desk.num_in_flight == 0)
        is_out = False
        batch = await s.ended(begun)
        output = await s.results(batch.output_file_id)
    assert [each["custom_id"] for each in output] == names
    assert s.desk.asked == dict.fromkeys(names, 1)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (sqlite3.OperationalError("disk I/O error"), BatchesAway),
        (sqlite3.OperationalError("database is locked"), BatchesAway),
        (type("DiskFull", (Exception,), {"sqlstate": "53100"})(), StorageFull),
        (type("AdminShutdown", (Exception,), {"sqlstate": "57P01"})(), BatchesAway),
    ],
)
def test_what_a_database_raises_is_told_without_its_text(cause: Exception, expected: type[ServingError]) -> None:
    with pytest.raises(expected) as told, translated():
        raise OperationalError("INSERT secret", {"a": "secret"}, cause)
    assert "secret" not in str(told.value)
    assert told.value.__cause__ is None


def test_password_of_a_database_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/none"
    with pytest.raises(DatabaseError, match=r"batch\.database_url: ") as told:
        open_database(BatchSettings(database_url=url))
    assert "secret" not in str(told.value) + caplog.text
