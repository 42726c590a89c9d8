"""vLLM's own benchmark against the deployed application, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import LIMIT_S, MODEL, Application
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.e2e
NUM_PROMPTS = 12
OUTPUT_TOKENS = 8
RUN = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""What `vllm bench serve` does. The `vllm` command itself does not start where the CPU build is installed."""


@pytest.mark.parametrize(
    ("backend", "endpoint", "header"),
    [("openai", "/v1/completions", "X-Priority=P0"), ("openai-chat", "/v1/chat/completions", "X-Priority=P2")],
)
def test_vllms_benchmark_runs_unchanged(
    application: Application, tmp_path: Path, backend: str, endpoint: str, header: str
) -> None:
    model = make_tiny_model(tmp_path / MODEL)
    arguments = {
        "--backend": backend,
        "--base-url": application.url,
        "--endpoint": endpoint,
        "--header": header,
        "--model": str(model),
        "--served-model-name": MODEL,
        "--dataset-name": "random",
        "--random-input-len": "16",
        "--random-output-len": str(OUTPUT_TOKENS),
        "--num-prompts": str(NUM_PROMPTS),
        "--request-rate": "20",
        "--percentile-metrics": "ttft,tpot,itl,e2el",
        "--goodput": "ttft:600000",
        "--result-dir": str(tmp_path),
        "--result-filename": "result.json",
    }
    command = [sys.executable, "-c", RUN, *(part for pair in arguments.items() for part in pair)]
    command += ["--save-result", "--disable-tqdm"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (NUM_PROMPTS, 0), ran.stdout
    assert result["total_output_tokens"] == NUM_PROMPTS * OUTPUT_TOKENS
    assert result["request_goodput"] > 0
    assert result["p99_ttft_ms"] > 0
    assert result["p99_itl_ms"] > 0
