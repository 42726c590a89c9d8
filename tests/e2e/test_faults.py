"""A process that is killed: its streams end with an error event, and the application comes back."""

from __future__ import annotations

import json

import httpx
import psutil
import pytest

from tests.e2e.conftest import MAX_MODEL_LEN, MODEL, Application, alive, wait_until

pytestmark = pytest.mark.e2e
SHORT = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.parametrize("victim", ["VLLM::EngineCore", "ray::ServeReplica:expresslane:Replica"])
def test_killed_process_ends_its_streams_with_an_error_event_and_is_replaced(
    application: Application, http: httpx.Client, victim: str
) -> None:
    wait_until(lambda: http.get("/readyz").status_code == 200, "ready")
    children = alive(application.process.children(recursive=True))
    (process,) = [p for p in children if name_of(p).startswith(victim)]
    body = {**SHORT, "max_tokens": MAX_MODEL_LEN - 100, "ignore_eos": True, "stream": True, "n": 8}
    events = []
    with http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                events.append(line.removeprefix("data: "))
                if len(events) == 3:
                    process.kill()
    assert json.loads(events[-1])["error"]["code"] == "replica_lost"
    assert "[DONE]" not in events
    wait_until(lambda: http.post("/v1/completions", json=SHORT).status_code == 200, "back in service", limit_s=300)
