"""The same on PostgreSQL, where its server and psycopg are installed: what SQLite lets pass would show here.

The server is started for these tests, on a socket of its own, and not as root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from batch.database import ADVISORY_LOCK, DatabaseError, open_database
from batch.tables import Base
from slo.batch import BatchStatus
from slo.settings import Settings, parse_settings
from tests.batch.scene import MODEL, FakeDesk, jsonl, line, scene

psycopg = pytest.importorskip("psycopg")
NAMES = [f"line-{n}" for n in range(30)]
LIMIT_S = 60


def tool(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)


pytestmark = pytest.mark.skipif(
    tool("initdb") is None or (os.getuid() == 0 and shutil.which("setpriv") is None),
    reason="PostgreSQL's server is not installed",
)


def as_nobody(*command: str) -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return list(command)
    nobody = pwd.getpwnam("nobody")
    ids = [f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    return ["setpriv", *ids, *command]


def answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as directory:
        url = f"postgresql://me@/postgres?host={directory}"
        if os.getuid() == 0:
            os.chown(directory, pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
        data = f"{directory}/data"
        made = as_nobody(str(tool("initdb")), "-D", data, "-U", "me", "-A", "trust", "-N", "-E", "UTF8")
        subprocess.run(made, check=True, capture_output=True, cwd=directory)
        command = as_nobody(str(tool("postgres")), "-D", data, "-k", directory, "-c", "listen_addresses=")
        server = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + LIMIT_S
            while not answers(url):
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # at once, whoever is connected
            server.wait(LIMIT_S)


def settings_of(url: str) -> Settings:
    batch = {"database_url": url, "max_in_flight": 4, "lock_timeout_s": LIMIT_S}
    return parse_settings({"model": {"names": [MODEL]}, "batch": batch})


def test_migrated_database_has_the_tables_that_the_code_expects(url: str) -> None:
    open_database(settings_of(url).batch).close()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


async def test_batch_goes_on_with_the_next_owner_and_each_line_is_answered_once(url: str) -> None:
    settings, desk = settings_of(url), FakeDesk()
    async with scene(settings, desk) as s:
        begun = await s.half_way(jsonl(*(line(name) for name in NAMES)), metadata={"a": "\0ü"})
    desk.gate.set()
    async with scene(settings, desk) as s:
        batch = await s.ended(begun)
        output = await s.results(batch.output_file_id)
        assert (await s.owner.delete_file("chat", batch.output_file_id or "")).deleted
    assert (batch.status, batch.metadata) == (BatchStatus.COMPLETED, {"a": "\0ü"})
    assert [each["custom_id"] for each in output] == NAMES
    assert sum(desk.asked.values()) == 34


def test_second_owner_is_refused_and_one_that_lost_its_lock_notices(url: str) -> None:
    first = open_database(settings_of(url).batch)
    impatient = settings_of(url).batch.model_copy(update={"lock_timeout_s": 0.1})
    with pytest.raises(DatabaseError, match="another Expresslane uses it"):
        open_database(impatient)
    first.lock.check()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = :high AND objid = :low"
        key = {"high": ADVISORY_LOCK >> 32, "low": ADVISORY_LOCK & 0xFFFFFFFF}
        assert connection.scalar(text(f"SELECT pg_terminate_backend(({holder}))"), key)
    engine.dispose()
    with pytest.raises(DatabaseError, match="the lock was lost"):
        first.lock.check()
    first.close()
    open_database(impatient).close()
