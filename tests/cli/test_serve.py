"""What `expresslane serve` refuses before it starts anything. The rest is in tests/e2e."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from batch.database import open_database
from cli.config import config_for
from cli.main import app
from slo.settings.batch import BatchSettings


@pytest.fixture(autouse=True)
def _signals_are_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def refusal(directory: Path, path: str) -> str:
    file = directory / "serve.yaml"
    arguments = {"model": {"source": "/never/read"}, "batch": {"path": path, "lock_timeout_s": 0.1}}
    file.write_text(yaml.safe_dump(config_for(arguments, 1)))
    told = CliRunner().invoke(app, ["serve", "--config", str(file)])
    assert told.exit_code == 1
    return told.output


def test_place_of_batches_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    assert "batch.path='/dev/null/a.sqlite3': [Errno 17] File exists" in refusal(tmp_path, "/dev/null/a.sqlite3")


def test_place_of_batches_that_another_fleet_uses_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sqlite3")
    other = open_database(BatchSettings(path=path))
    assert "another Expresslane uses it" in refusal(tmp_path, path)
    other.close()
