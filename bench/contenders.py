"""The servers that are compared, each started as its users start it, with the same engine settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from bench.load import Route
from cli.cluster import answers, free_port
from cli.config import config_for

START_LIMIT_S = 600
BLOCK_TOKENS = 32
MODEL = "bench"


@dataclass(frozen=True, slots=True)
class Engine:
    """What all contenders have in common."""

    model_path: str
    slots: int
    threads: int
    kv_cache_bytes: int = 2**30


@contextlib.contextmanager
def expresslane(engine: Engine, settings: dict[str, Any] | None = None) -> Iterator[Route]:
    """Expresslane, whole: Ray Serve, HAProxy, ingress and one replica. `settings`: further groups of its settings."""
    port = free_port()
    arguments: dict[str, Any] = {
        "model": {"source": engine.model_path, "names": [MODEL]},
        "engine": {
            "max_num_seqs": engine.slots,
            "kv_cache_bytes": engine.kv_cache_bytes,
            "block_tokens": BLOCK_TOKENS,
            "cpu_threads": engine.threads,
        },
        **(settings or {}),
    }
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as directory:  # short: Ray keeps sockets in it
        config = Path(directory) / "serve.yaml"
        config.write_text(yaml.safe_dump(config_for(arguments, port)))
        command = [sys.executable, "-m", "cli.main", "serve", "--config", str(config)]
        with _process(command, {"RAY_TMPDIR": directory}, f"http://127.0.0.1:{port}/readyz"):
            yield Route(
                f"http://127.0.0.1:{port}",
                MODEL,
                urgent_headers={"X-Priority": "P0"},
                batch_headers={"X-Priority": "P2"},
            )


@contextlib.contextmanager
def stock_vllm(engine: Engine, policy: str, scheduler_cls: str | None = None) -> Iterator[Route]:
    """vLLM's own OpenAI server with the scheduling policy `fcfs` or `priority`."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    command += ["--host", "127.0.0.1", "--model", engine.model_path, "--served-model-name", MODEL, "--enforce-eager"]
    command += ["--max-num-seqs", str(engine.slots), "--kv-cache-memory-bytes", str(engine.kv_cache_bytes)]
    command += ["--block-size", str(BLOCK_TOKENS), "--scheduling-policy", policy]
    if scheduler_cls is not None:
        command += ["--scheduler-cls", scheduler_cls]
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(engine.threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    plain = Route(f"http://127.0.0.1:{port}", MODEL)
    with _process(command, environment, f"http://127.0.0.1:{port}/health"):
        if policy == "priority":
            yield replace(plain, urgent_fields={"priority": 0}, batch_fields={"priority": 2})
        else:
            yield plain


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str], ready_url: str) -> Iterator[None]:
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not answers(ready_url):
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    raise RuntimeError(f"{command[2]} did not start:\n{output.read()[-4000:]}")
                time.sleep(0.5)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
