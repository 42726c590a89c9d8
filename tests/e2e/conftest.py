"""One deployment of the whole application with the tiny model, shared by every test here that needs none of its own.

It is started as a user starts it, by `expresslane serve`, with ports and files of its own, and ended with Ctrl-C's
signal; what is left of its processes then fails the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import yaml

from cli.cluster import free_port
from cli.config import config_for
from tests.tiny_model import make_tiny_model

LIMIT_S = 900.0
"""Of every wait here: a machine may be ten times slower than another, and what never comes is told all the same."""
MODEL = "tiny"
SLOTS = 4
MAX_MODEL_LEN = 1024
MAX_BODY_BYTES = 1_000_000
MAX_LINES = 1000
PERIOD_S = 0.5
"""Of the controller: fast, so that tests need not wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Many waits may be long in one test: its own limit is there for what hangs in none of them."""
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.timeout(4 * LIMIT_S))


@dataclass(frozen=True)
class Application:
    """A running application, where its processes write their logs, and Ray's dashboard."""

    url: str
    dashboard_url: str
    log_dir: Path
    process: psutil.Process

    def kill(self) -> None:
        """SIGKILL to every process of it at once; removes what none of them is left to remove."""
        processes = [self.process, *self.process.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not alive(processes), "killed")
        for left in Path("/tmp").glob(f"xl-{self.process.pid}-*"):
            shutil.rmtree(left)

    def log_text(self) -> str:
        """Everything that the application's processes have logged so far."""
        return "".join(p.read_text(errors="replace") for p in sorted(self.log_dir.glob("worker-*.err")))

    def has_logged(self, pattern: str, limit_s: float = LIMIT_S) -> bool:
        """Whether `pattern` comes to match what has been logged, within `limit_s`."""
        deadline = time.monotonic() + limit_s
        while re.search(pattern, self.log_text()) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Waits for a condition, with a generous limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {limit_s} s: {what}"
        time.sleep(0.05)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that waits to be reaped has ended."""
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def deploy(dashboard_url: str, config: dict[str, Any]) -> None:
    """Deploys on a running cluster, as an operator does it."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        command = [Path(sys.executable).with_name("serve"), "deploy", file.name, "-a", dashboard_url]
        environment = {**os.environ, "RAY_AUTH_MODE": "token"}
        deployed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr


@contextlib.contextmanager
def running_application(directory: Path, config: dict[str, Any]) -> Iterator[Application]:
    """The application of `config`, started and ended as a user does it; keeps its files in `directory`."""
    file, output = directory / "serve.yaml", directory / "output"
    file.write_text(yaml.safe_dump(config))
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as ray_dir:  # short: Ray keeps sockets in it
        with output.open("w") as written:
            command = [sys.executable, "-m", "cli.main", "serve", "--config", str(file)]
            environment = {**os.environ, "RAY_TMPDIR": ray_dir}
            process = subprocess.Popen(command, stdout=written, stderr=written, env=environment)
        try:
            wait_until(lambda: "is ready on" in output.read_text() or process.poll() is not None, "ready")
            assert process.poll() is None, output.read_text()
            yield _application(output.read_text(), process.pid)
            if process.poll() == -signal.SIGKILL:  # the test has killed it
                return
            started = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=LIMIT_S) == 0, output.read_text()
            assert not alive(started), f"left running: {alive(started)}"
            assert not list(Path("/tmp").glob(f"xl-{process.pid}-*"))
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what a failed test has left."""
    if process.poll() is not None:
        return
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=60)
    for left in (*alive(started), process):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    process.wait(timeout=60)


def _application(announced: str, pid: int) -> Application:
    url, dashboard, logs = (
        re.search(rf"{what} (\S+?),?( |$)", announced, re.MULTILINE)
        for what in ("is ready on", "Ray's dashboard, on the loopback alone:", "Logs:")
    )
    assert url is not None
    assert dashboard is not None
    assert logs is not None
    return Application(url[1], dashboard[1], Path(logs[1]), psutil.Process(pid))


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """The application with the tiny model, four run slots, float32; its controller looks twice a second."""
    directory = tmp_path_factory.mktemp("e2e")
    arguments = {
        **tiny_engine(make_tiny_model(directory / MODEL)),
        "ingress": {"max_body_bytes": MAX_BODY_BYTES},
        "classification": {
            "headers": [{"header": "X-Gateway-Objective", "values": {"chat": "P0", "nightly": "P2"}}],
            "rules": [{"priority": "P2", "streamed": False, "min_max_tokens": 500}],
        },
        "autoscale": {"period_s": PERIOD_S, "window_s": 3 * PERIOD_S, "stale_after_s": 10 * PERIOD_S},
        "batch": {"path": str(directory / "batches.sqlite3"), "max_lines": MAX_LINES},
    }
    with running_application(directory, config_for(arguments, free_port())) as started:
        yield started


def tiny_engine(model: Path) -> dict[str, Any]:
    """Settings of an engine with the tiny model: four run slots, float32; and no batches."""
    return {
        "model": {"source": str(model), "names": [MODEL, "tiny-alias"]},
        "engine": {
            "max_num_seqs": SLOTS,
            "max_model_len": MAX_MODEL_LEN,
            "dtype": "float32",
            "kv_cache_bytes": 64 * 2**20,
            "tool_call_parser": "hermes",
        },
        "batch": {"enabled": False},
    }


@pytest.fixture(scope="session")
def http(application: Application) -> Iterator[httpx.Client]:
    """A plain HTTP client of the application."""
    with httpx.Client(base_url=application.url, timeout=LIMIT_S) as client:
        yield client


def client_of(application: Application) -> openai.OpenAI:
    """OpenAI's own client of the application, without retries that would hide errors."""
    return openai.OpenAI(base_url=f"{application.url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S)


@pytest.fixture(scope="session")
def client(application: Application) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of the shared application."""
    with client_of(application) as client:
        yield client
