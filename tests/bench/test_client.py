from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from bench.client import Client, ServerUnreachable, first_model, open_session, outcome_of_status
from bench.reply import Reply
from bench.scenario import Endpoint
from slo.outcome import Outcome
from tests.bench.scripted_server import Script, ScriptedServer

GENEROUS_S = 60.0


async def reply_of(
    server: ScriptedServer,
    script: Script | None = None,
    *,
    endpoint: Endpoint = Endpoint.CHAT,
    timeout_s: float = GENEROUS_S,
    clock: Callable[[], float] | None = None,
) -> Reply:
    server.script = lambda _body, _headers: script or Script()
    payload = b'{"messages": []}' if endpoint is Endpoint.CHAT else b'{"prompt": "p"}'
    async with open_session(timeout_s) as session:
        client = Client(session, server.url + "/") if clock is None else Client(session, server.url, clock)
        return await client.send(endpoint.path, payload, {"X-Priority": "P0"})


@pytest.mark.parametrize("endpoint", list(Endpoint))
async def test_client_times_each_token_of_a_completed_answer(server: ScriptedServer, endpoint: Endpoint) -> None:
    reply = await reply_of(server, Script(num_tokens=4, delay_s=0.002), endpoint=endpoint)
    assert (reply.outcome, reply.error) == (Outcome.COMPLETED, None)
    assert (reply.prompt_tokens, reply.output_tokens) == (7, 4)
    assert len(reply.token_times_s) == 4
    times = [reply.sent_s, *reply.token_times_s, reply.ended_s]
    assert times == sorted(times)
    assert reply.token_times_s[0] > reply.sent_s


async def test_client_sends_the_body_and_headers_it_was_given(server: ScriptedServer) -> None:
    await reply_of(server)
    ((path, body, headers),) = server.asked
    assert (path, body) == ("/v1/chat/completions", {"messages": []})
    assert (headers["x-priority"], headers["content-type"]) == ("P0", "application/json")


async def test_client_completes_an_answer_without_usage(server: ScriptedServer) -> None:
    reply = await reply_of(server, Script(has_usage=False))
    assert (reply.outcome, reply.output_tokens) == (Outcome.COMPLETED, None)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.REJECTED),
        (401, Outcome.REJECTED),
        (404, Outcome.REJECTED),
        (408, Outcome.EXPIRED),
        (429, Outcome.SHED),
        (500, Outcome.FAILED),
        (503, Outcome.REPLICA_LOST),
        (504, Outcome.EXPIRED),
    ],
)
async def test_status_tells_the_outcome(server: ScriptedServer, status: int, outcome: Outcome) -> None:
    assert outcome_of_status(status) is outcome
    reply = await reply_of(server, Script(status=status, error={"message": "because"}))
    assert (reply.outcome, reply.error, reply.token_times_s) == (outcome, "because", ())


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("overloaded", Outcome.SHED),
        ("deadline_exceeded", Outcome.EXPIRED),
        ("replica_lost", Outcome.REPLICA_LOST),
        ("other", Outcome.FAILED),
        (None, Outcome.FAILED),
    ],
)
async def test_error_in_the_stream_tells_the_outcome(
    server: ScriptedServer, code: str | None, outcome: Outcome
) -> None:
    reply = await reply_of(server, Script(error={"message": "because", "code": code}))
    assert (reply.outcome, reply.error) == (outcome, "because")
    assert len(reply.token_times_s) == 3


@pytest.mark.parametrize("cut_after", [0, 2])
async def test_cut_stream_is_failed(server: ScriptedServer, cut_after: int) -> None:
    reply = await reply_of(server, Script(cut_after=cut_after))
    assert reply.outcome is Outcome.FAILED
    assert reply.error


async def test_stream_that_ends_quietly_without_done_is_failed(server: ScriptedServer) -> None:
    server.ends_with_done = False
    reply = await reply_of(server)
    assert (reply.outcome, len(reply.token_times_s)) == (Outcome.FAILED, 3)
    assert "without [DONE]" in str(reply.error)


async def test_answer_without_a_token_is_failed(server: ScriptedServer) -> None:
    reply = await reply_of(server, Script(num_tokens=0))
    assert (reply.outcome, reply.error) == (Outcome.FAILED, "an answer without a token")


async def test_request_is_expired_when_its_client_gives_up(server: ScriptedServer) -> None:
    server.hold_until = 2
    reply = await reply_of(server, timeout_s=0.05)
    assert reply.outcome is Outcome.EXPIRED
    server.hold_until = 0


async def test_request_is_failed_when_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        reply = await reply_of(ScriptedServer(url=f"http://127.0.0.1:{unused.getsockname()[1]}"))
    assert reply.outcome is Outcome.FAILED
    assert "Connect" in str(reply.error)


async def test_events_of_one_read_share_its_time(server: ScriptedServer) -> None:
    ticks = iter(range(1000))
    server.in_one_write = True
    reply = await reply_of(server, Script(num_tokens=5), clock=lambda: float(next(ticks)))
    assert len(reply.token_times_s) == 5
    assert len(set(reply.token_times_s)) == 1


async def test_many_requests_are_in_flight_at_once(server: ScriptedServer) -> None:
    server.hold_until = 150  # more than a pool of aiohttp's usual size; none is answered before all have come
    async with open_session(GENEROUS_S) as session:
        client = Client(session, server.url)
        replies = await asyncio.gather(*(client.send(Endpoint.CHAT.path, b"{}", {}) for _ in range(150)))
    assert {reply.outcome for reply in replies} == {Outcome.COMPLETED}


async def test_first_model_is_the_first_listed(server: ScriptedServer) -> None:
    async with open_session(GENEROUS_S) as session:
        assert await first_model(session, server.url, {"Authorization": "Bearer k"}) == "first"
    assert server.model_headers["authorization"] == "Bearer k"


@pytest.mark.parametrize("answer", [{"data": []}, {"object": "list"}, [], {"data": [{}]}])
async def test_first_model_tells_what_is_wrong_with_the_answer(server: ScriptedServer, answer: Any) -> None:
    server.models = answer
    async with open_session(GENEROUS_S) as session:
        with pytest.raises(ServerUnreachable, match="/v1/models: "):
            await first_model(session, server.url, {})


async def test_first_model_tells_of_a_refusal(server: ScriptedServer) -> None:
    server.models_status = 401
    async with open_session(GENEROUS_S) as session:
        with pytest.raises(ServerUnreachable, match="/v1/models: 401: "):
            await first_model(session, server.url, {})
