"""One deployment of the whole application with the tiny model, shared by every test here.

It is started as a user starts it, by `expresslane serve`, with ports and files of its own, and ended with Ctrl-C's
signal; what is left of its processes then fails the run.
"""

from __future__ import annotations

import os
import re
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

START_LIMIT_S = 400
MODEL = "tiny"
SLOTS = 4
MAX_MODEL_LEN = 1024
MAX_BODY_BYTES = 1_000_000


@dataclass(frozen=True)
class Application:
    """A running application, and where its processes write their logs."""

    url: str
    log_dir: Path
    process: psutil.Process

    def log_text(self) -> str:
        """Everything that the application's processes have logged so far."""
        return "".join(p.read_text(errors="replace") for p in sorted(self.log_dir.glob("worker-*.err")))

    def has_logged(self, pattern: str, limit_s: float = 10) -> bool:
        """Whether `pattern` comes to match what has been logged, within `limit_s`."""
        deadline = time.monotonic() + limit_s
        while re.search(pattern, self.log_text()) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 120) -> None:
    """Waits for a condition, with a generous limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {limit_s} s: {what}"
        time.sleep(0.05)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that waits to be reaped has ended."""
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """The application with the tiny model, four run slots, float32."""
    directory = tmp_path_factory.mktemp("e2e")
    port = free_port()
    config = directory / "serve.yaml"
    config.write_text(yaml.safe_dump(_config(make_tiny_model(directory / MODEL), port)))
    output = directory / "output"
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as ray_dir:  # short: Ray keeps sockets in it
        with output.open("w") as file:
            command = [sys.executable, "-m", "cli.main", "serve", "--config", str(config)]
            environment = {**os.environ, "RAY_TMPDIR": ray_dir}
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        try:
            wait_until(
                lambda: "is ready on" in output.read_text() or process.poll() is not None, "ready", START_LIMIT_S
            )
            assert process.poll() is None, output.read_text()
            logs = re.search(r"Logs: (\S+)", output.read_text())
            assert logs is not None
            yield Application(f"http://127.0.0.1:{port}", Path(logs[1]), psutil.Process(process.pid))
            started = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 0, output.read_text()
            assert not alive(started), f"left running: {alive(started)}"
            assert not list(Path("/tmp").glob(f"xl-{process.pid}-*"))
        finally:
            if process.poll() is None:
                process.kill()


def _config(model: Path, port: int) -> dict[str, Any]:
    arguments = {
        "model": {"source": str(model), "names": [MODEL, "tiny-alias"]},
        "engine": {
            "max_num_seqs": SLOTS,
            "max_model_len": MAX_MODEL_LEN,
            "dtype": "float32",
            "kv_cache_bytes": 64 * 2**20,
            "tool_call_parser": "hermes",
        },
        "ingress": {"max_body_bytes": MAX_BODY_BYTES},
        "classification": {
            "headers": [{"header": "X-Gateway-Objective", "values": {"chat": "P0", "nightly": "P2"}}],
            "rules": [{"priority": "P2", "streamed": False, "min_max_tokens": 500}],
        },
    }
    return config_for(arguments, port)


@pytest.fixture(scope="session")
def http(application: Application) -> Iterator[httpx.Client]:
    """A plain HTTP client of the application."""
    with httpx.Client(base_url=application.url, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def client(application: Application) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of the application, without retries that would hide errors."""
    with openai.OpenAI(base_url=f"{application.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
