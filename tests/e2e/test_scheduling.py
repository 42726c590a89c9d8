"""Urgent requests overtake batch work in the deployed application, and batch work loses nothing by it."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import httpx
import pytest

from tests.e2e.conftest import LIMIT_S, MAX_MODEL_LEN, MODEL, SLOTS, Application

pytestmark = pytest.mark.e2e
LONG = MAX_MODEL_LEN - 100


async def complete(client: httpx.AsyncClient, prompt: str, max_tokens: int, priority: str) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    answer = await client.post("/v1/completions", json=body, headers={"X-Priority": priority})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


async def test_urgent_request_overtakes_batch_work_that_holds_every_slot(application: Application) -> None:
    prompts = [f"Batch document number {i}:" for i in range(2 * SLOTS)]
    async with httpx.AsyncClient(base_url=application.url, timeout=LIMIT_S) as client:
        undisturbed = [await complete(client, p, LONG, "P2") for p in prompts]
        batch = [asyncio.create_task(complete(client, p, LONG, "P2")) for p in prompts]
        urgent = [await complete(client, f"Urgent {i}", 4, "P0") for i in range(5)]
        finished_before = sum(task.done() for task in batch)
        disturbed = await asyncio.gather(*batch)
    assert len(urgent) == 5
    assert finished_before == 0, "an urgent request waited for batch work to end"
    assert disturbed == undisturbed


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_stops_the_engines_work(application: Application, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "Long", "max_tokens": LONG, "ignore_eos": True, "n": 4 * SLOTS, "stream": stream}
    for attempt in range(8):  # left too early it was never sent, and too late it was answered: try a longer stay
        request_id = f"leaver-{stream}-{attempt}"
        async with httpx.AsyncClient(base_url=application.url, timeout=LIMIT_S) as client:
            headers = {"X-Request-Id": request_id, "X-Priority": "P2"}
            task = asyncio.create_task(client.post("/v1/completions", json=body, headers=headers))
            await asyncio.sleep(0.1 * 2**attempt)
            task.cancel()
        if application.has_logged(
            rf"expresslane.replica request_id={request_id} .*reason=client_left unfinished=0", limit_s=10
        ):
            break
    else:
        pytest.fail("the engine went on working for a client that had left")
    assert application.has_logged(rf"expresslane.ingress request_id={request_id} .*outcome=cancelled")


def test_client_that_leaves_is_noticed_when_its_body_came_in_a_segment_of_its_own(application: Application) -> None:
    """Ten times: a proxy that splices bodies misses about one such client in ten."""
    body = json.dumps({"model": MODEL, "prompt": "Long", "max_tokens": LONG, "ignore_eos": True, "n": 4 * SLOTS})
    for attempt in range(10):
        request_id = f"split-{attempt}"
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: {request_id}\r\nX-Priority: P2\r\n"
        with socket.create_connection(("127.0.0.1", httpx.URL(application.url).port or 80)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
            time.sleep(0.05)
            connection.sendall(body.encode())
            time.sleep(0.3)
        assert application.has_logged(rf"expresslane.ingress request_id={request_id} .*outcome=cancelled")
