"""Mutations that these tests see: drop the keys when the file is damaged or gone; log a fault each time; look once."""

from __future__ import annotations

import itertools
import logging
import os
import time
from pathlib import Path

import pytest

from app.gate.key_file import KeyFileError
from app.gate.key_file_watch import KeyFileWatch
from app.gate.keys import hash_key

SECONDS = itertools.count(1)


def write(path: Path, *names: str, disabled: bool = False) -> None:
    entries = [f'- {{name: {n}, keys_sha256: ["{hash_key(f"key-{n}")}"], disabled: {disabled}}}\n' for n in names]
    path.write_text("tenants:\n" + "".join(entries))
    later_ns = time.time_ns() + next(SECONDS) * 1_000_000_000  # two writes within one tick of the file system's clock
    os.utime(path, ns=(later_ns, later_ns))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    write(path, "a")
    return path


def names(watch: KeyFileWatch) -> list[str]:
    return [tenant.name for tenant in watch.store.tenants]


def test_watch_takes_a_changed_file_over(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = KeyFileWatch(path, 60)
    assert names(watch) == ["a"]
    write(path, "a", "b")
    with caplog.at_level(logging.INFO, "expresslane.keys"):
        watch.check()
        watch.check()
    assert names(watch) == ["a", "b"]
    assert [r.getMessage() for r in caplog.records] == [f"path={str(path)!r} reason=reloaded tenants=2"]


def test_watch_takes_a_revoked_key_away(path: Path) -> None:
    watch = KeyFileWatch(path, 60)
    assert watch.store.find("key-a") is not None
    write(path, "a", disabled=True)
    watch.check()
    assert watch.store.find("key-a") is None


def test_watch_takes_over_a_file_that_was_replaced_by_another(path: Path, tmp_path: Path) -> None:
    """As an editor does, and a mounted secret."""
    watch = KeyFileWatch(path, 60)
    write(tmp_path / "new.yaml", "c")
    (tmp_path / "new.yaml").replace(path)
    watch.check()
    assert names(watch) == ["c"]


@pytest.mark.parametrize("damage", ["tenants: [", "", "tenants: []", None, b"\xff\xfe\xfa"])
def test_watch_keeps_the_last_good_file_when_it_is_damaged_and_logs_it_once(
    path: Path, damage: str | bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    watch = KeyFileWatch(path, 60)
    match damage:
        case None:
            path.unlink()
        case str():
            path.write_text(damage)
        case bytes():
            path.write_bytes(damage)
    with caplog.at_level(logging.INFO, "expresslane.keys"):
        for _ in range(3):
            watch.check()
    assert names(watch) == ["a"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "reason=damaged kept=last_good" in record.getMessage()
    assert str(path) in record.getMessage()
    write(path, "b")
    watch.check()
    assert names(watch) == ["b"]


@pytest.mark.parametrize("text", [None, "tenants: ["])
def test_watch_does_not_start_without_a_good_file(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(KeyFileError, match=r"keys\.yaml: "):
        KeyFileWatch(path, 60)


def test_watch_looks_by_itself_until_it_is_stopped(path: Path) -> None:
    watch = KeyFileWatch(path, 0.001)
    watch.start()
    write(path, "b")
    deadline_s = time.monotonic() + 30
    while names(watch) != ["b"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    watch.stop()
