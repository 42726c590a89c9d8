import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.metrics import IngressMetrics
from slo.errors import EngineFailed, Rejected, RejectReason, ReplicaLost, ServingError, Shed
from slo.messages import Chunk, Document, Endpoint, Failure, GenerateCall
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import Settings, parse_settings
from tests.app.conftest import RecordLine, RecordLines
from tests.app.exchange import Exchange
from tests.app.fake_dispatcher import MODELS, FakeDispatcher
from tests.app.one_model import api_of_one

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NAMES = ("tiny", "smollm")
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a secret"}]}
ANSWER = Document('{"id":"x","choices":[]}')
STREAM = (Chunk('data: {"a":1}\n\n'), Chunk('data: {"b":2}\n\ndata: {"c":3}\n\n'), Chunk("data: [DONE]\n\n"))


def app_over(dispatcher: FakeDispatcher, settings: Settings | None = None, **options: Any) -> FastAPI:
    return api_of_one(dispatcher, settings, NAMES, **options)


def client_of(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def ask(
    dispatcher: FakeDispatcher,
    body: Any = BODY,
    headers: dict[str, str] | None = None,
    path: str = CHAT,
    settings: Settings | None = None,
    **options: Any,
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client_of(app_over(dispatcher, settings, **options)) as client:
        return await client.post(path, content=content, headers=headers)


def assert_openai_error(response: httpx.Response, status: int, kind: str, code: str | None) -> str:
    """Checks an error's shape; gives its message."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (kind, code)
    return str(error["message"])


@pytest.mark.parametrize(("path", "endpoint"), [(CHAT, Endpoint.CHAT), (COMPLETIONS, Endpoint.COMPLETION)])
async def test_api_answers_whole_with_the_replicas_document(
    path: str, endpoint: Endpoint, records: RecordLines
) -> None:
    dispatcher = FakeDispatcher(ANSWER)
    response = await ask(dispatcher, headers={"x-request-id": "id-1", "x-priority": "P0"}, path=path)
    assert (response.status_code, response.text) == (200, ANSWER.json)
    assert response.headers["content-type"] == "application/json"
    assert dispatcher.calls == [GenerateCall(endpoint, BODY, PriorityClass.P0, "id-1")]
    assert records.closed == [RecordLine("id-1", path, "P0", "'anonymous'", "header x-priority", "completed")]


async def test_api_answers_a_stream_with_the_replicas_events(records: RecordLines) -> None:
    dispatcher = FakeDispatcher(*STREAM)
    response = await ask(dispatcher, {**BODY, "stream": True})
    assert (response.status_code, response.text) == (200, "".join(chunk.events for chunk in STREAM))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert records.outcomes == ["completed"]
    assert dispatcher.ends == [None]


@pytest.mark.parametrize(
    "script", [(ANSWER,), STREAM, (Failure(ReplicaLost("gone")),)], ids=["whole", "stream", "error"]
)
async def test_api_sends_class_and_request_id_with_every_answer(script: tuple[Any, ...]) -> None:
    response = await ask(FakeDispatcher(*script), headers={"X-Priority": "batch", "X-Request-Id": "id-1"})
    assert (response.headers["x-priority-class"], response.headers["x-request-id"]) == ("P2", "id-1")


@pytest.mark.parametrize("sent", [None, "not sane", "x" * 200])
async def test_api_makes_a_request_id_when_the_clients_is_missing_or_not_sane(sent: str | None) -> None:
    dispatcher = FakeDispatcher(ANSWER)
    response = await ask(dispatcher, headers={} if sent is None else {"x-request-id": sent})
    assert re.fullmatch(r"[0-9a-f]{32}", response.headers["x-request-id"])
    assert dispatcher.calls[0].request_id == response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("sent", "num_headers"), [("id-1", 0), ("not sane", 1), (None, 1)], ids=["kept", "replaced", "missing"]
)
async def test_api_leaves_the_request_id_to_the_server_when_it_echoes_the_same(
    sent: str | None, num_headers: int
) -> None:
    headers = {} if sent is None else {"x-request-id": sent}
    response = await ask(FakeDispatcher(ANSWER), headers=headers, server_echoes_request_id=True)
    assert len(response.headers.get_list("x-request-id")) == num_headers


async def test_api_never_hands_on_what_only_the_ingress_may_decide() -> None:
    dispatcher = FakeDispatcher(ANSWER)
    own = {"priority": -100, "request_id": "stolen", "kv_transfer_params": {"a": 1}, "ec_transfer_params": {}}
    await ask(dispatcher, {**BODY, **own}, headers={"x-request-id": "id-1"})
    assert dispatcher.calls == [GenerateCall(Endpoint.CHAT, BODY, PriorityClass.P1, "id-1")]


async def test_api_classifies_by_service_tier_and_settings() -> None:
    settings = parse_settings({"classification": {"default_class": "P2"}})
    dispatcher = FakeDispatcher(ANSWER)
    await ask(dispatcher, settings=settings)
    await ask(dispatcher, {**BODY, "service_tier": "priority"}, settings=settings)
    assert [call.priority for call in dispatcher.calls] == [PriorityClass.P2, PriorityClass.P0]


async def test_api_refuses_headers_sent_twice_when_their_classes_differ() -> None:
    dispatcher = FakeDispatcher(ANSWER)
    async with client_of(app_over(dispatcher)) as client:
        response = await client.post(CHAT, json=BODY, headers=[("X-Priority", "P0"), ("x-priority", "P2")])
    assert "sent more than once" in assert_openai_error(response, 400, "invalid_request_error", None)
    assert dispatcher.calls == []


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "outcome"),
    [
        (Rejected("bad", "n"), 400, "invalid_request_error", None, "rejected"),
        (Rejected("none", None, RejectReason.NOT_SUPPORTED), 501, "invalid_request_error", "not_supported", "rejected"),
        (Shed("full", 3), 429, "rate_limit_error", "overloaded", "shed"),
        (ReplicaLost("gone"), 503, "service_unavailable", "replica_lost", "replica_lost"),
        (EngineFailed("fault"), 500, "server_error", "engine_failed", "failed"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("stream", [False, True])
async def test_api_gives_a_refusal_its_real_status_when_nothing_was_sent(
    error: ServingError, status: int, kind: str, code: str | None, outcome: str, stream: bool, records: RecordLines
) -> None:
    dispatcher = FakeDispatcher(Failure(error))
    response = await ask(dispatcher, {**BODY, "stream": stream})
    assert assert_openai_error(response, status, kind, code) == error.message
    assert response.json()["error"]["param"] == error.param
    assert response.headers.get("retry-after") == {429: "3", 503: "1"}.get(status)
    assert records.outcomes == [outcome]
    assert len(dispatcher.ends) == 1


async def test_api_ends_a_stream_with_an_error_event_without_done_when_it_fails_midway(records: RecordLines) -> None:
    response = await ask(FakeDispatcher(STREAM[0], Failure(ReplicaLost("gone")), STREAM[2]), {**BODY, "stream": True})
    assert response.status_code == 200
    first, last, end = response.text.split("\n\n")
    assert (first, end) == ('data: {"a":1}', "")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_lost"
    assert "[DONE]" not in response.text
    assert records.outcomes == ["replica_lost"]


@pytest.mark.parametrize(
    ("body", "status", "code", "part"),
    [
        (b"", 400, None, "no body"),
        (b"{", 400, None, "not valid JSON"),
        (b"[]", 400, None, "must be a JSON object, not an array"),
        (b'{"a": NaN}', 400, None, "not valid JSON"),
        (b"x" * 200, 413, "request_too_large", "limit of 100 bytes"),
        (b'{"model": 1}', 400, None, "model: must be a string"),
        (b'{"model": "gpt-4"}', 404, "model_not_found", "'gpt-4' does not exist; served: tiny, smollm"),
        (b'{"model": ""}', 404, "model_not_found", "'' does not exist"),
        (b'{"service_tier": "gold"}', 400, None, "allowed: priority, auto, default, flex"),
    ],
)
async def test_api_refuses_a_bad_request_before_any_replica_sees_it(
    body: bytes, status: int, code: str | None, part: str, records: RecordLines
) -> None:
    dispatcher = FakeDispatcher(ANSWER)
    settings = parse_settings({"ingress": {"max_body_bytes": 100}})
    response = await ask(dispatcher, body, headers={"x-request-id": "id-1"}, settings=settings)
    assert part in assert_openai_error(response, status, "invalid_request_error", code)
    assert response.headers["x-request-id"] == "id-1"
    assert dispatcher.calls == []
    assert records.outcomes == ["rejected"]


async def test_api_tells_the_class_with_a_refusal_when_it_was_decided() -> None:
    known = await ask(FakeDispatcher(), {"model": "gpt-4"}, headers={"x-priority": "P0"})
    unknown = await ask(FakeDispatcher(), b"{", headers={"x-priority": "P0"})
    assert known.headers["x-priority-class"] == "P0"
    assert "x-priority-class" not in unknown.headers


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": "tiny"}, {"model": "smollm"}])
async def test_api_takes_any_served_name_or_none(model: dict[str, Any]) -> None:
    assert (await ask(FakeDispatcher(ANSWER), {"messages": [], **model})).status_code == 200


async def test_api_answers_500_in_openais_shape_when_the_dispatcher_breaks(records: RecordLines) -> None:
    dispatcher = FakeDispatcher(KeyError("a secret of ours"))
    response = await ask(dispatcher, headers={"x-request-id": "id-1", "x-priority": "P0"})
    message = assert_openai_error(response, 500, "server_error", "internal_error")
    assert message == "an unexpected error; the log has it under this request's id"
    assert (response.headers["x-request-id"], response.headers["x-priority-class"]) == ("id-1", "P0")
    assert records.outcomes == ["failed"]
    (logged,) = [text for text in records.all_text if "reason=unexpected" in text]
    assert logged.startswith(f"request_id=id-1 route='{CHAT}' reason=unexpected\nTraceback ")


async def test_api_answers_500_when_listing_the_models_breaks(records: RecordLines) -> None:
    async with client_of(app_over(FakeDispatcher(models=KeyError("x")))) as client:
        response = await client.get("/v1/models")
    assert_openai_error(response, 500, "server_error", "internal_error")
    assert records.all_text[0].splitlines()[0] == "request_id=None route='/v1/models' reason=unexpected"


async def test_api_never_logs_what_was_asked(records: RecordLines) -> None:
    for reply in (ANSWER, Failure(EngineFailed("fault"))):
        await ask(FakeDispatcher(reply))
    assert len(records.all_text) == 2
    assert not any("secret" in text for text in records.all_text)


@pytest.mark.parametrize("path", ["/", "/v1/embeddings", "/v1/chat", "/docs", "/v2/models"])
async def test_api_answers_404_in_openais_shape_when_the_route_is_unknown(path: str) -> None:
    async with client_of(app_over(FakeDispatcher())) as client:
        response = await client.post(path, json=BODY)
    message = assert_openai_error(response, 404, "invalid_request_error", "unknown_url")
    assert message == f"unknown URL: POST {path}"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", COMPLETIONS, "POST"),
        ("POST", "/v1/models", "GET"),
        ("DELETE", "/v1/models/tiny", "GET"),
        ("POST", "/healthz", "GET"),
    ],
)
async def test_api_answers_405_in_openais_shape_when_the_method_is_wrong(method: str, path: str, allowed: str) -> None:
    async with client_of(app_over(FakeDispatcher())) as client:
        response = await client.request(method, path)
    message = assert_openai_error(response, 405, "invalid_request_error", "method_not_allowed")
    assert message == f"{method} is not allowed on {path}"
    assert response.headers["allow"] == allowed


async def test_api_lists_the_models_that_the_replica_tells() -> None:
    async with client_of(app_over(FakeDispatcher())) as client:
        response = await client.get("/v1/models")
    assert response.json() == {"object": "list", "data": MODELS}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["id"])
async def test_api_gives_one_model_also_when_its_name_has_a_slash(model: dict[str, Any]) -> None:
    async with client_of(app_over(FakeDispatcher())) as client:
        response = await client.get(f"/v1/models/{model['id']}")
    assert (response.status_code, response.json()) == (200, model)


async def test_api_answers_404_when_the_model_asked_for_is_unknown() -> None:
    async with client_of(app_over(FakeDispatcher())) as client:
        response = await client.get("/v1/models/gpt-4")
    message = assert_openai_error(response, 404, "invalid_request_error", "model_not_found")
    assert message == "the model 'gpt-4' does not exist; served: tiny, org/other"


@pytest.mark.parametrize("path", ["/readyz", "/v1/models", "/v1/models/tiny"])
async def test_api_answers_503_when_no_replica_can_be_asked(path: str) -> None:
    async with client_of(app_over(FakeDispatcher(models=ReplicaLost("no replica answered in time")))) as client:
        response = await client.get(path)
    assert_openai_error(response, 503, "service_unavailable", "replica_lost")


async def test_healthz_answers_when_no_replica_does() -> None:
    async with client_of(app_over(FakeDispatcher(models=ReplicaLost("gone")))) as client:
        response = await client.get("/healthz")
    assert (response.status_code, response.text) == (200, "ok\n")


async def test_readyz_answers_when_a_replica_does() -> None:
    async with client_of(app_over(FakeDispatcher())) as client:
        response = await client.get("/readyz")
    assert (response.status_code, response.text) == (200, "ready\n")


async def leave_midway(exchange: Exchange, _: FakeDispatcher) -> None:
    assert (await exchange.next_message())["status"] == 200
    assert await exchange.next_events() == STREAM[0].events
    exchange.disconnect()
    await exchange.ended()


async def leave_midway_by_cancellation(exchange: Exchange, _: FakeDispatcher) -> None:
    assert (await exchange.next_message())["status"] == 200
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.ended()


async def leave_before_the_first_reply(exchange: Exchange, dispatcher: FakeDispatcher) -> None:
    await dispatcher.called.wait()
    exchange.task.cancel()  # what Serve does when the client is gone
    with pytest.raises(asyncio.CancelledError):
        await exchange.ended()


@pytest.mark.parametrize(
    ("script", "leave"),
    [
        ((STREAM[0], asyncio.Event), leave_midway),
        ((STREAM[0], asyncio.Event), leave_midway_by_cancellation),
        ((asyncio.Event, STREAM[0]), leave_before_the_first_reply),
        ((asyncio.Event, ANSWER), leave_before_the_first_reply),
    ],
    ids=["midway", "midway, cancelled", "before a stream", "before a whole answer"],
)
async def test_api_closes_the_replies_and_ends_the_record_once_when_the_client_leaves(
    script: tuple[Any, ...], leave: Callable[[Exchange, FakeDispatcher], Any], records: RecordLines
) -> None:
    dispatcher = FakeDispatcher(*(step() if step is asyncio.Event else step for step in script))
    exchange = Exchange(app_over(dispatcher), CHAT, {**BODY, "stream": True}, {"x-request-id": "id-1"})
    await leave(exchange, dispatcher)
    assert dispatcher.ends == [asyncio.CancelledError]
    assert records.closed == [RecordLine("id-1", CHAT, "P1", "'anonymous'", "default", "cancelled")]


async def test_api_asks_no_replica_when_the_client_leaves_before_its_body_is_whole(records: RecordLines) -> None:
    dispatcher = FakeDispatcher(ANSWER)
    exchange = Exchange(app_over(dispatcher), CHAT)
    exchange.put_body(b'{"model"', more=True)
    exchange.disconnect()
    await exchange.ended()
    assert dispatcher.calls == []
    assert records.outcomes == ["cancelled"]


async def test_api_breaks_a_stream_off_and_fails_its_record_when_the_dispatcher_breaks_midway(
    records: RecordLines,
) -> None:
    dispatcher = FakeDispatcher(STREAM[0], KeyError("x"))
    exchange = Exchange(app_over(dispatcher), CHAT, BODY, {"x-request-id": "id-1"})
    with pytest.raises(KeyError):
        await exchange.ended()
    assert [message.get("more_body") for message in exchange.left_over()] == [None, True]
    assert records.closed == [RecordLine("id-1", CHAT, "P1", "'anonymous'", "default", "failed")]
    assert any(text.startswith("request_id=id-1 ") and "reason=unexpected" in text for text in records.all_text)


async def test_api_counts_each_request_where_it_is_told_to() -> None:
    metrics = IngressMetrics(Settings().scheduler.targets)
    await ask(FakeDispatcher(*STREAM), {**BODY, "stream": True}, {"X-Priority": "P0"}, metrics=metrics)
    await ask(FakeDispatcher(Failure(Shed("full", 1))), BODY, {"X-Priority": "P2"}, metrics=metrics)
    await ask(FakeDispatcher(ANSWER), BODY, {"X-Priority": "urgent"}, metrics=metrics)
    metrics.check_invariants()
    snapshot = metrics.snapshot({})
    outcomes = {priority: traffic.outcomes for priority, traffic in snapshot.classes.items() if traffic.outcomes}
    assert outcomes == {PriorityClass.P0: {Outcome.COMPLETED: 1}, PriorityClass.P2: {Outcome.SHED: 1}}
    assert snapshot.num_unclassified == {Outcome.REJECTED: 1}
    assert snapshot.classes[PriorityClass.P0].ttft.count == 1
    assert all(traffic.num_in_flight == 0 for traffic in snapshot.classes.values())


async def test_api_judges_requests_by_the_targets_that_are_set() -> None:
    settings = parse_settings({"scheduler": {"targets": {"p0": {"ttft_p99_ms": 1e-6}}}})
    metrics = IngressMetrics(settings.scheduler.targets)
    await ask(FakeDispatcher(*STREAM), {**BODY, "stream": True}, {"X-Priority": "P0"}, metrics=metrics)
    traffic = metrics.snapshot({}).classes[PriorityClass.P0]
    assert (traffic.num_held, traffic.num_missed) == (0, 1)
