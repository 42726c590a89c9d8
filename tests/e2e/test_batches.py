"""Batches as OpenAI's own client runs them, beside requests, and through the death of their owner, and of all."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai.types import Batch

from cli.cluster import free_port
from cli.config import config_for
from slo import metrics
from tests.e2e.conftest import (
    LIMIT_S,
    MODEL,
    Application,
    client_of,
    running_application,
    tiny_engine,
    wait_until,
)
from tests.e2e.test_faults import named
from tests.e2e.test_operator import scrape, value
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.e2e
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
OWNER = "ray::ServeReplica:expresslane:Batches"
NUM_LINES = 240
SHIPS = [f"ship {n}" for n in range(NUM_LINES)]


def completion(name: str, **body: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "prompt": f"The {name} carries", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    return {"custom_id": name, "method": "POST", "url": COMPLETION, "body": asked | body}


def begin(client: openai.OpenAI, lines: Sequence[dict[str, Any]], endpoint: str = COMPLETION) -> Batch:
    content = io.BytesIO("".join(json.dumps(line) + "\n" for line in lines).encode())
    file = client.files.create(file=("night.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"job": "night"}
    )


def when(client: openai.OpenAI, batch: Batch, *statuses: str) -> Batch:
    deadline = time.monotonic() + LIMIT_S
    while (batch := client.batches.retrieve(batch.id)).status not in statuses:
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
    return batch


def results(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_batch_answers_as_requests_are_answered_and_faults_are_apart(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Tell me about trains."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}
    too_long = body | {"messages": [{"role": "user", "content": "trains " * 2000}]}
    lines = [
        {"custom_id": name, "method": "POST", "url": CHAT, "body": asked}
        for name, asked in (("one", body), ("two", too_long), ("three", body | {"model": "tiny-alias"}))
    ]
    begun = begin(client, lines, CHAT)
    assert begun.status == "validating"
    batch = when(client, begun, "completed")
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"completed": 2, "failed": 1, "total": 3}
    assert batch.metadata == {"job": "night"}
    output = results(client, batch.output_file_id)
    whole = client.chat.completions.create(**body)
    assert [line["custom_id"] for line in output] == ["one", "three"]
    assert output[0]["response"]["status_code"] == 200
    assert output[0]["response"]["body"]["choices"][0]["message"]["content"] == whole.choices[0].message.content
    assert output[0]["response"]["body"]["id"].endswith(output[0]["id"])
    (error,) = results(client, batch.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("two", 400)
    assert "1024" in error["response"]["body"]["error"]["message"]


def test_files_are_listed_read_and_deleted(client: openai.OpenAI) -> None:
    content = b"x" * 700_000 + b"\n"
    file = client.files.create(file=("big.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (len(content), "big.jsonl", "batch")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content
    assert file.id in [each.id for each in client.files.list(purpose="batch", limit=1)]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


def test_batches_are_listed_page_by_page_the_latest_first(client: openai.OpenAI) -> None:
    begun = [begin(client, [completion("ship")]).id for _ in range(3)]
    assert [batch.id for batch in client.batches.list(limit=2)][:3] == begun[::-1]
    assert [b.id for b in client.batches.list(limit=1, after=begun[2]).data] == [begun[1]]


def test_bad_file_fails_its_batch_and_names_the_line(client: openai.OpenAI) -> None:
    batch = when(client, begin(client, [completion("a"), completion("b", stream=True)]), "failed")
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(fault.line, fault.param) for fault in batch.errors.data] == [(2, "body.stream")]


def test_bad_requests_are_told_by_their_field(client: openai.OpenAI, http: httpx.Client) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=b"x", purpose="assistants")
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        client.batches.create(input_file_id="file-none", endpoint="/v1/embeddings", completion_window="24h")
    assert http.post("/v1/files", content=b"{}").status_code == 400


def test_cancelled_batch_frees_the_engine_and_keeps_its_results(client: openai.OpenAI, http: httpx.Client) -> None:
    long = [completion(f"ship {n}", max_tokens=4 if n < 4 else 900) for n in range(12)]
    begun = begin(client, long)
    wait_until(lambda: client.batches.retrieve(begun.id).request_counts.completed >= 2, "some answered")
    assert client.batches.cancel(begun.id).status == "cancelling"
    batch = when(client, begun, "cancelled")
    assert len(results(client, batch.output_file_id)) == batch.request_counts.completed < 12
    wait_until(lambda: value(scrape(http), metrics.IN_FLIGHT.name, priority_class="P2") == 0, "nothing in flight")
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        client.batches.cancel(begun.id)


def under_way(client: openai.OpenAI) -> Batch:
    """A batch of `NUM_LINES` short lines, a quarter of which has been answered."""
    begun = begin(client, [completion(name) for name in SHIPS])
    wait_until(lambda: client.batches.retrieve(begun.id).request_counts.completed >= NUM_LINES // 4, "under way")
    return begun


def check_each_line_answered_once(client: openai.OpenAI, begun: Batch) -> None:
    """Waits for the end of a batch that was `under_way`."""
    batch = when(client, begun, "completed")
    output = results(client, batch.output_file_id)
    assert [line["custom_id"] for line in output] == SHIPS
    assert batch.request_counts.model_dump() == {"completed": NUM_LINES, "failed": 0, "total": NUM_LINES}
    assert {line["response"]["body"]["usage"]["completion_tokens"] for line in output} == {8}


def test_killed_application_goes_on_with_its_batches_when_it_is_started_again(tmp_path: Path) -> None:
    path = str(tmp_path / "batches.sqlite3")
    arguments = tiny_engine(make_tiny_model(tmp_path / MODEL)) | {"batch": {"path": path}}
    config = config_for(arguments, free_port())
    with running_application(tmp_path, config) as application, client_of(application) as client:
        begun = under_way(client)
        application.kill()
    with contextlib.closing(sqlite3.connect(path)) as database:
        ((num_completed,),) = database.execute("SELECT num_completed FROM batches WHERE id = ?", [begun.id])
    assert NUM_LINES // 4 <= num_completed < NUM_LINES, "killed in the middle"
    with running_application(tmp_path, config) as application, client_of(application) as client:
        check_each_line_answered_once(client, begun)


def test_killed_owner_costs_no_line_and_answers_none_twice(application: Application, client: openai.OpenAI) -> None:
    begun = under_way(client)
    (owner,) = named(application, OWNER)
    owner.kill()
    psutil.wait_procs([owner], timeout=LIMIT_S)
    patient = client.with_options(max_retries=20)
    assert patient.batches.retrieve(begun.id).request_counts.completed < NUM_LINES, "ended before the kill"
    check_each_line_answered_once(patient, begun)
