import asyncio
import json
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.classify import Classification
from app.metrics import IngressMetrics
from app.record import RequestRecord
from app.stream import EventStream, answer, error_response
from slo.errors import EngineFailed, Rejected, ReplicaLost, Shed
from slo.messages import Chunk, Document, Endpoint, Failure, GenerateCall
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import ClassTargets
from slo.snapshots import ClassTraffic
from tests.app.exchange import Exchange
from tests.app.fake_dispatcher import FakeDispatcher, Step

CALL = GenerateCall(Endpoint.CHAT, {}, PriorityClass.P1, "id-1")
FIRST, SECOND, DONE = Chunk("data: 1\n\n"), Chunk("data: 2\n\n"), Chunk("data: [DONE]\n\n")


def make_record() -> RequestRecord:
    record = RequestRecord("id-1", "/", IngressMetrics(ClassTargets()), lambda: 0.0)
    record.classified(Classification(PriorityClass.P1, "default"))
    return record


def traffic_of(record: RequestRecord) -> ClassTraffic:
    """What was counted of `record`."""
    record.metrics.check_invariants()
    return record.metrics.snapshot({}).classes[PriorityClass.P1]


def send_answer(record: RequestRecord, *script: Step, spec_version: str = "2.3") -> tuple[Exchange, FakeDispatcher]:
    """An answer being sent from `script`, as one request to an application that does nothing else."""
    dispatcher = FakeDispatcher(*script)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await answer(dispatcher.generate(CALL), record, {"x-extra": "1"})
        await response(scope, receive, send)

    return Exchange(app, "/", {}, spec_version=spec_version), dispatcher


async def test_answer_is_json_when_the_first_reply_is_a_document() -> None:
    record, dispatcher = make_record(), FakeDispatcher(Document('{"id":"x"}'))
    response = await answer(dispatcher.generate(CALL), record, {"x-extra": "1"})
    assert (response.status_code, response.body) == (200, b'{"id":"x"}')
    assert (response.headers["content-type"], response.headers["x-extra"]) == ("application/json", "1")
    assert record.outcome is Outcome.COMPLETED
    traffic = traffic_of(record)
    assert (traffic.ttft.count, traffic.tbt.count, traffic.e2e.count) == (0, 0, 1)
    assert len(dispatcher.ends) == 1


@pytest.mark.parametrize(
    "error", [Rejected("bad"), Shed("full", 1), ReplicaLost("gone"), EngineFailed("fault")], ids=repr
)
async def test_answer_raises_the_failure_when_it_is_the_first_reply(error: Any) -> None:
    record, dispatcher = make_record(), FakeDispatcher(Failure(error))
    with pytest.raises(type(error)) as raised:
        await answer(dispatcher.generate(CALL), record, {})
    assert raised.value is error
    assert record.outcome is None
    assert len(dispatcher.ends) == 1


async def test_answer_raises_engine_failed_when_the_replica_ends_without_a_reply() -> None:
    with pytest.raises(EngineFailed, match="ended without an answer"):
        await answer(FakeDispatcher().generate(CALL), make_record(), {})


async def test_answer_lets_an_unexpected_error_through_and_leaves_the_record_open() -> None:
    record, dispatcher = make_record(), FakeDispatcher(KeyError("x"))
    with pytest.raises(KeyError):
        await answer(dispatcher.generate(CALL), record, {})
    assert record.outcome is None
    assert dispatcher.ends == [KeyError]


async def test_answer_closes_the_replies_when_it_is_cancelled_before_the_first() -> None:
    dispatcher = FakeDispatcher(asyncio.Event(), FIRST)
    waiting = asyncio.create_task(answer(dispatcher.generate(CALL), make_record(), {}))
    await dispatcher.called.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert dispatcher.ends == [asyncio.CancelledError]


async def test_stream_sends_each_event_before_the_next_one_is_there() -> None:
    record, gate = make_record(), asyncio.Event()
    exchange, dispatcher = send_answer(record, FIRST, gate, SECOND, DONE)
    start = await exchange.next_message()
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert dict(start["headers"]) == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
        b"x-extra": b"1",
    }
    assert await exchange.next_events() == FIRST.events
    assert record.outcome is None
    gate.set()
    assert [await exchange.next_events() for _ in range(3)] == [SECOND.events, DONE.events, ""]
    await exchange.ended()
    assert exchange.left_over() == []
    assert record.outcome is Outcome.COMPLETED
    assert dispatcher.ends == [None]


async def test_stream_counts_the_events_that_carry_tokens_and_no_other() -> None:
    role, usage = Chunk("data: role\n\n", has_tokens=False), Chunk("data: usage\n\n", has_tokens=False)
    end = Chunk("data: [DONE]\n\n", has_tokens=False)
    record = make_record()
    exchange, _ = send_answer(record, role, FIRST, SECOND, SECOND, usage, end)
    await exchange.ended()
    traffic = traffic_of(record)
    assert (traffic.ttft.count, traffic.tbt.count, traffic.e2e.count) == (1, 2, 1)


async def test_stream_counts_a_token_when_it_leaves_and_not_before() -> None:
    record, gate = make_record(), asyncio.Event()
    role = Chunk("data: role\n\n", has_tokens=False)
    exchange, _ = send_answer(record, role, gate, FIRST, asyncio.Event())
    await exchange.next_message()
    assert await exchange.next_events() == role.events
    assert (traffic_of(record).ttft.count, traffic_of(record).num_in_flight) == (0, 1)
    gate.set()
    assert await exchange.next_events() == FIRST.events
    assert traffic_of(record).ttft.count == 1
    exchange.disconnect()
    await exchange.ended()
    assert traffic_of(record).outcomes == {Outcome.CANCELLED: 1}


async def test_stream_sends_the_events_bytes_as_utf8() -> None:
    exchange, _ = send_answer(make_record(), Chunk('data: {"text":"żółć 😀"}\n\n'))
    await exchange.next_message()
    assert await exchange.next_events() == 'data: {"text":"żółć 😀"}\n\n'
    await exchange.ended()


@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [
        (ReplicaLost("gone"), "replica_lost", Outcome.REPLICA_LOST),
        (EngineFailed("fault"), "engine_failed", Outcome.FAILED),
        (Shed("full", 1), "overloaded", Outcome.SHED),
        (Rejected("bad"), None, Outcome.REJECTED),
    ],
    ids=repr,
)
async def test_stream_ends_with_an_error_event_without_done_when_it_fails_midway(
    error: Any, code: str | None, outcome: Outcome
) -> None:
    record = make_record()
    exchange, dispatcher = send_answer(record, FIRST, Failure(error), DONE)
    await exchange.next_message()
    assert await exchange.next_events() == FIRST.events
    event = await exchange.next_events()
    assert event.startswith("data: ")
    assert event.endswith("\n\n")
    told = json.loads(event.removeprefix("data: "))["error"]
    assert (told["message"], told["code"]) == (error.message, code)
    assert await exchange.next_events() == ""
    await exchange.ended()
    assert exchange.left_over() == []
    assert record.outcome is outcome
    assert len(dispatcher.ends) == 1


@pytest.mark.parametrize("fault", [KeyError("x"), Document("{}")], ids=["unexpected error", "a document"])
async def test_stream_breaks_off_and_the_record_fails_when_the_replies_are_at_fault(fault: Step) -> None:
    record = make_record()
    exchange, dispatcher = send_answer(record, FIRST, fault, DONE)
    with pytest.raises((KeyError, AssertionError)):
        await exchange.ended()
    bodies = [message for message in exchange.left_over() if message["type"] == "http.response.body"]
    assert [(message["body"], message["more_body"]) for message in bodies] == [(FIRST.events.encode(), True)]
    assert record.outcome is Outcome.FAILED
    assert len(dispatcher.ends) == 1


async def test_stream_closes_the_replies_and_is_cancelled_when_the_client_leaves_between_events() -> None:
    record = make_record()
    exchange, dispatcher = send_answer(record, FIRST, asyncio.Event(), SECOND)
    await exchange.next_message()
    assert await exchange.next_events() == FIRST.events
    exchange.disconnect()
    await exchange.ended()
    assert dispatcher.ends == [asyncio.CancelledError]
    assert record.outcome is Outcome.CANCELLED
    assert exchange.left_over() == []


async def test_stream_closes_the_replies_and_is_cancelled_when_the_client_left_before_the_first_event() -> None:
    record, gate = make_record(), asyncio.Event()
    exchange, dispatcher = send_answer(record, gate, FIRST, asyncio.Event(), SECOND)
    await dispatcher.called.wait()
    exchange.disconnect()
    gate.set()
    await exchange.ended()
    assert dispatcher.ends == [asyncio.CancelledError]
    assert record.outcome is Outcome.CANCELLED


async def test_stream_closes_the_replies_and_is_cancelled_when_the_client_leaves_without_reading() -> None:
    record = make_record()
    exchange, dispatcher = send_answer(record, FIRST, SECOND)
    exchange.stop_reading()
    await exchange.next_message()
    exchange.disconnect()
    await exchange.ended()
    assert dispatcher.ends == [GeneratorExit]
    assert record.outcome is Outcome.CANCELLED


async def test_stream_closes_the_replies_and_is_cancelled_when_the_server_tells_by_an_error() -> None:
    record, gate = make_record(), asyncio.Event()
    exchange, dispatcher = send_answer(record, FIRST, gate, SECOND, asyncio.Event(), spec_version="2.4")
    await exchange.next_message()
    assert await exchange.next_events() == FIRST.events
    exchange.disconnect()
    gate.set()
    await exchange.ended()
    assert dispatcher.ends == [GeneratorExit]
    assert record.outcome is Outcome.CANCELLED


async def test_stream_keeps_its_failure_when_the_client_leaves_during_the_error_event() -> None:
    record, gate = make_record(), asyncio.Event()
    exchange, _ = send_answer(record, FIRST, gate, Failure(ReplicaLost("gone")), spec_version="2.4")
    await exchange.next_message()
    assert await exchange.next_events() == FIRST.events
    exchange.disconnect()
    gate.set()
    await exchange.ended()
    assert record.outcome is Outcome.REPLICA_LOST


async def test_stream_closes_the_replies_and_is_cancelled_when_its_task_is() -> None:
    record = make_record()
    exchange, dispatcher = send_answer(record, FIRST, asyncio.Event(), SECOND)
    await exchange.next_message()
    assert await exchange.next_events() == FIRST.events
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.ended()
    assert dispatcher.ends == [asyncio.CancelledError]
    assert record.outcome is Outcome.CANCELLED


async def test_stream_leaves_nothing_open_when_it_is_never_iterated() -> None:
    record, dispatcher = make_record(), FakeDispatcher(FIRST, SECOND)
    replies = dispatcher.generate(CALL)
    stream = EventStream(FIRST, replies, record, {})
    assert await anext(replies) == FIRST

    async def never(_: object = None) -> Any:
        raise RuntimeError("the server is broken")

    with pytest.raises(RuntimeError, match="the server is broken"):
        await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, never, never)
    assert dispatcher.ends == [GeneratorExit]
    assert record.outcome is Outcome.FAILED


def test_error_response_is_openais_error_object_with_its_headers() -> None:
    error = Shed("full", 2)
    response: Response = error_response(error, {"x-request-id": "id-1"})
    assert response.status_code == 429
    assert (response.headers["retry-after"], response.headers["x-request-id"]) == ("2", "id-1")
    assert json.loads(bytes(response.body))["error"]["message"] == "full"
