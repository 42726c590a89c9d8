"""Urgent requests overtake batch work in the deployed application, and batch work loses nothing by it."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.e2e.conftest import MAX_MODEL_LEN, MODEL, SLOTS, Application

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
    async with httpx.AsyncClient(base_url=application.url, timeout=300) as client:
        undisturbed = [await complete(client, p, LONG, "P2") for p in prompts]
        batch = [asyncio.create_task(complete(client, p, LONG, "P2")) for p in prompts]
        urgent = [await complete(client, f"Urgent {i}", 4, "P0") for i in range(5)]
        finished_before = sum(task.done() for task in batch)
        disturbed = await asyncio.gather(*batch)
    assert len(urgent) == 5
    assert finished_before == 0, "an urgent request waited for batch work to end"
    assert disturbed == undisturbed


async def test_client_that_leaves_stops_the_engines_work(application: Application) -> None:
    for stream in (True, False):
        request_id = f"leaver-{stream}"
        body = {"model": MODEL, "prompt": "Long", "max_tokens": LONG, "ignore_eos": True, "stream": stream}
        async with httpx.AsyncClient(base_url=application.url, timeout=300) as client:
            headers = {"X-Request-Id": request_id, "X-Priority": "P2"}
            task = asyncio.create_task(client.post("/v1/completions", json=body, headers=headers))
            await asyncio.sleep(0.2)  # so that it has most likely begun; the test holds whether it has or not
            task.cancel()
        application.wait_for_log(rf"expresslane.replica request_id={request_id} class=P2 reason=client_left")
        application.wait_for_log(rf"expresslane.ingress request_id={request_id} .*outcome=cancelled")
