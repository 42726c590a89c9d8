"""Real processes: what was started ends, whatever happens to whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bench.compare.contender import Contender
from bench.compare.server import ServerFailed, is_taken, running
from bench.compare.sizes import Sizes
from cli.cluster import free_port
from tests.bench.scripted_server import ScriptedServer

SIZES = Sizes(model="none")
ANSWERS = ("$python", "-m", "tests.bench.scripted_server", "$port")
# A daemon in a session of its own, that has lost its parent and ignores every polite signal.
LEAVES_A_DAEMON = "(trap '' INT TERM HUP; setsid sleep $0 &); exec $1 -m tests.bench.scripted_server $2"
LIMIT_S = 60


def contender(*command: str, **values: Any) -> Contender:
    return Contender.model_validate({"name": "it", "command": command, "end_limit_s": 5, **values})


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not in {LIMIT_S} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def daemon() -> Iterator[tuple[Contender, Callable[[], bool]]]:
    """A contender that leaves a daemon, and whether that lives. Its long sleep has a length that no other has."""
    length = f"{100_000 + os.getpid()}.{time.monotonic_ns() % 10**6}"

    def lives() -> bool:
        return any(p.info["cmdline"] == ["sleep", length] for p in psutil.process_iter(["cmdline"]))

    yield contender("bash", "-c", LEAVES_A_DAEMON.replace("$", "$$"), length, "$python", "$port"), lives
    assert not lives()


def test_server_is_ready_with_its_files_and_ends_with_all_it_started(
    daemon: tuple[Contender, Callable[[], bool]],
) -> None:
    one, lives = daemon
    told = one.model_copy(update={"files": {"conf": "port: $port"}, "environment": {"WHERE": "$directory"}})
    with running(told, SIZES) as server:
        filled = server.contender
        directory = Path(filled.environment["WHERE"])
        assert httpx.get(f"{filled.url}/health").status_code == 200
        assert (directory / "conf").read_text() == f"port: {filled.url.rpartition(':')[2]}"
        assert lives()
        assert server.start_s is not None
    assert not is_taken(filled.url)
    assert not lives()
    assert not directory.exists()


def test_server_ends_when_whoever_started_it_breaks_off() -> None:
    with pytest.raises(KeyboardInterrupt), running(contender(*ANSWERS), SIZES) as server:
        raise KeyboardInterrupt
    assert not is_taken(server.contender.url)


def test_all_that_was_started_ends_when_its_starter_is_killed(
    daemon: tuple[Contender, Callable[[], bool]], tmp_path: Path
) -> None:
    one, lives = daemon
    (tmp_path / "files").mkdir()
    filled = one.with_values(SIZES.provided(str(tmp_path / "files"), free_port()))
    keeper = [sys.executable, "-m", "bench.compare.keeper", str(tmp_path / "files"), "5", *(filled.command or ())]
    script = f"import subprocess, time; subprocess.Popen({keeper!r}, stdin=subprocess.PIPE); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", script]) as starter:
        wait_until(lambda: lives() and is_taken(filled.url), "it has started")
        starter.kill()
    wait_until(lambda: not (lives() or is_taken(filled.url) or (tmp_path / "files").exists()), "everything has ended")


def test_server_that_does_not_start_is_told_with_its_last_words() -> None:
    code = "import sys; print('loading'); sys.exit('no device')"
    with pytest.raises(ServerFailed, match=r"ended by itself \(exit status 1\): no device") as failed:
        running(contender("$python", "-c", code), SIZES).__enter__()
    assert failed.value.output == "loading\nno device"
    with pytest.raises(ServerFailed, match="No such file"):
        running(contender("/no/such/program"), SIZES).__enter__()


def test_server_that_never_answers_is_given_up_and_ended() -> None:
    port = free_port()
    silent = contender("$python", "-m", "http.server", str(port), url=f"http://127.0.0.1:{port}", start_limit_s=3)
    with pytest.raises(ServerFailed, match="/health did not answer 200 in 3 s"):
        running(silent, SIZES).__enter__()
    assert not is_taken(f"http://127.0.0.1:{port}")


def test_server_is_not_started_where_another_listens(server: ScriptedServer) -> None:
    with pytest.raises(ServerFailed, match="is in use"):
        running(contender(*ANSWERS, url=server.url), SIZES).__enter__()
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_server_that_ends_while_it_is_used_is_told() -> None:
    with running(contender(*ANSWERS), SIZES) as started:
        started.check()
        (keeper,) = [p for p in psutil.Process().children() if "bench.compare.keeper" in p.cmdline()]
        keeper.children()[0].kill()
        keeper.wait(LIMIT_S)
        with pytest.raises(ServerFailed, match="ended by itself"):
            started.check()


def test_server_that_runs_already_is_met_where_it_is(server: ScriptedServer) -> None:
    there = Contender(name="remote", url=server.url)
    with running(there, SIZES) as met:
        assert (met.contender.url, met.start_s) == (server.url, None)
    assert httpx.get(f"{server.url}/health").status_code == 200
    gone = Contender(name="gone", url="http://127.0.0.1:9", start_limit_s=0.1)
    with pytest.raises(ServerFailed, match="did not answer 200"), running(gone, SIZES):
        pass
