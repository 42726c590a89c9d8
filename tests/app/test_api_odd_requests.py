"""Requests with paths, hosts and queries that no client sends: each gets an answer of ours.

Mutations that these tests see: a path read through `request.url`, which reads the `Host` and the query too; redirects
of Starlette's; a path in the log as it was sent.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Scope

from slo.messages import Document
from tests.app.conftest import RecordLines
from tests.app.fake_dispatcher import FakeDispatcher
from tests.app.one_model import api_of_one

CHAT = "/v1/chat/completions"
ANSWER = Document('{"id":"x"}')
PATIENCE_S = 30


async def status_of(
    path: str, *, method: str = "GET", query: bytes = b"", host: bytes = b"x", dispatcher: Any = None
) -> tuple[int, dict[bytes, bytes]]:
    """The application's status and headers for a request as a server hands it over; raises what it raises."""
    app = api_of_one(dispatcher or FakeDispatcher(ANSWER))
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": b"",
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", host)],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"messages": []}', "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(PATIENCE_S):
        await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize("host", [b"[", b"[::", b"\xff", b"a b", b"x:99999999", b"x/y?z", b"\xe2\x84\x80", b""])
@pytest.mark.parametrize("query", [b"", b"\xff", b"%ff"])
async def test_api_answers_whatever_host_and_query_are(host: bytes, query: bytes) -> None:
    asked = {"host": host, "query": query}
    assert (await status_of(CHAT, method="POST", **asked))[0] == 200
    assert (await status_of(CHAT, method="PUT", **asked))[0] == 405
    assert (await status_of("/nothing", **asked))[0] == 404
    assert (await status_of("/healthz/", **asked))[0] == 404


@pytest.mark.parametrize("path", ["/", "//", "/\n", "/\ud7ff\uffff\x00", "/" + "a" * 100_000, "*", "", "/v1/models/\n"])
async def test_api_answers_404_when_the_path_is_odd(path: str) -> None:
    assert (await status_of(path))[0] == 404


async def test_api_answers_500_of_ours_when_the_dispatcher_breaks_and_the_query_is_no_text() -> None:
    app_error = FakeDispatcher(KeyError("broken"))
    with pytest.raises(KeyError):  # raised again for the server's log, after the answer
        await status_of(CHAT, method="POST", query=b"\xff", dispatcher=app_error)


@pytest.mark.parametrize("path", ["/healthz/", CHAT + "/", "/status/"])
async def test_api_redirects_nowhere(path: str) -> None:
    status, headers = await status_of(path, host=b"elsewhere.example")
    assert status == 404
    assert b"location" not in headers


async def test_api_logs_the_route_and_not_the_path_that_was_sent(records: RecordLines) -> None:
    assert (await status_of(CHAT + "\n", method="POST"))[0] in (200, 404)  # Starlette takes one newline for nothing
    assert all("\n" not in text for text in records.all_text)
