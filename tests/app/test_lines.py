"""Lines of batches at an ingress process: each is a request of its tenant, of class P2.

Mutations tried by hand, each found by a test here: another class; an exception that leaves; a record left open; a
permit of the gate kept after the answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.gate.access import Access
from app.gate.entry import Entry
from app.gate.keys import KeyStore, hash_key, new_key
from app.gate.tenant import Tenant
from app.lines import NO_KEY_RETRY_S, ROUTE, Lines
from app.metrics import IngressMetrics
from app.model_names import ModelNames
from app.served import ServedModel, ServedModels
from slo.batch import LineAnswer, LineCall
from slo.errors import EngineFailed, NotAdmitted, OverQuota, Rejected, ReplicaLost, ServingError
from slo.messages import Document, Endpoint, Failure
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import Settings, parse_settings
from tests.app.conftest import RecordLines
from tests.app.fake_dispatcher import FakeDispatcher

BODY = {"model": "tiny", "messages": [], "priority": -5, "service_tier": "priority"}
OPEN = Access(None)


def call_of(body: Any = BODY, tenant: str = "anonymous") -> LineCall:
    return LineCall("batch_req_1_2", Endpoint.CHAT, tenant, json.dumps(body).encode())


class Desk:
    def __init__(self, *script: Any, access: Access = OPEN, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self.dispatcher = FakeDispatcher(*script)
        self.metrics = IngressMetrics(settings.scheduler.targets)
        self.entry = Entry(settings, access)
        model = ServedModel("tiny", ModelNames(("tiny",)), self.dispatcher, self.metrics, self.entry)
        self.lines = Lines(ServedModels([model]))

    def outcomes(self) -> dict[Outcome, int]:
        self.metrics.check_invariants()
        self.entry.gate.check_invariants()
        return dict(self.metrics.snapshot({}).classes[PriorityClass.P2].outcomes)


async def test_line_is_a_p2_request_of_its_tenant(records: RecordLines) -> None:
    desk = Desk(Document('{"id": "x"}'))
    assert await desk.lines.answer(call_of()) == LineAnswer(200, '{"id": "x"}', None, 1)
    assert desk.entry.gate.state()[PriorityClass.P2].in_flight.sequences == 0
    (call,) = desk.dispatcher.calls
    assert (call.priority, call.request_id, call.endpoint) == (PriorityClass.P2, "batch_req_1_2", Endpoint.CHAT)
    assert "priority" not in call.body
    assert desk.outcomes() == {Outcome.COMPLETED: 1}
    (line,) = records.closed
    assert (line.request_id, line.route, line.priority, line.reason) == ("batch_req_1_2", ROUTE, "P2", "batch")
    assert line.tenant == "'anonymous'"


@pytest.mark.parametrize(
    ("script", "status", "error", "outcome"),
    [
        ([Failure(Rejected("bad", param="n"))], 400, Rejected, Outcome.REJECTED),
        ([Failure(ReplicaLost("gone"))], 503, ReplicaLost, Outcome.REPLICA_LOST),
        ([], 500, EngineFailed, Outcome.FAILED),
        ([RuntimeError("a bug")], 500, ServingError, Outcome.FAILED),
    ],
)
async def test_what_goes_wrong_is_told_as_http_would(
    script: list[Any], status: int, error: type[ServingError], outcome: Outcome
) -> None:
    desk = Desk(*script)
    answer = await desk.lines.answer(call_of())
    assert (answer.status, type(answer.error)) == (status, error)
    assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
    assert desk.outcomes() == {outcome: 1}


@pytest.mark.parametrize("body", [BODY | {"model": "none"}, [], BODY | {"n": 2**70}])
async def test_line_that_no_request_could_be_is_rejected_and_reaches_no_replica(body: Any) -> None:
    desk = Desk(Document("{}"))
    answer = await desk.lines.answer(call_of(body))
    assert isinstance(answer.error, Rejected)
    assert not desk.dispatcher.calls
    assert desk.outcomes() == {Outcome.REJECTED: 1}


async def test_line_waits_at_the_gate_and_is_told_when_no_replica_runs() -> None:
    desk = Desk(Document("{}"), settings=parse_settings({"admission": {"p2": {"queue_timeout_s": 0.01}}}))
    desk.entry.gate.set_num_replicas(0)
    answer = await desk.lines.answer(call_of())
    assert isinstance(answer.error, NotAdmitted)
    assert answer.num_replicas == 0
    assert not desk.dispatcher.calls


async def test_line_counts_against_the_quota_of_its_tenant_and_needs_no_key_of_its_own(records: RecordLines) -> None:
    tenant = Tenant("chat", PriorityClass.P2, requests_per_minute=1)
    store = [KeyStore([(hash_key(new_key()), tenant)])]
    desk = Desk(Document("{}"), access=Access(lambda: store[0]))
    assert (await desk.lines.answer(call_of(tenant="chat"))).error is None
    over = (await desk.lines.answer(call_of(tenant="chat"))).error
    assert isinstance(over, OverQuota)
    store[0] = KeyStore([])
    gone = (await desk.lines.answer(call_of(tenant="chat"))).error
    assert isinstance(gone, OverQuota)
    assert gone.retry_after_s == NO_KEY_RETRY_S
    assert [line.tenant for line in records.closed] == ["'chat'"] * 2
    assert len(desk.dispatcher.calls) == 1


async def test_line_that_is_given_up_stops_its_engine() -> None:
    desk = Desk(asyncio.Event())
    line = asyncio.create_task(desk.lines.answer(call_of()))
    await desk.dispatcher.called.wait()
    line.cancel()
    await asyncio.gather(line, return_exceptions=True)
    assert line.cancelled()
    assert desk.dispatcher.ends == [asyncio.CancelledError]
    assert desk.outcomes() == {Outcome.CANCELLED: 1}


async def test_line_is_answered_by_its_model_and_counted_with_it() -> None:
    first, second = Desk(Document('{"id": "first"}')), Desk(Document('{"id": "second"}'))
    second.entry.gate.set_num_replicas(3)
    models = [
        ServedModel(name, ModelNames((name,)), desk.dispatcher, desk.metrics, desk.entry)
        for name, desk in (("tiny", first), ("large", second))
    ]
    lines = Lines(ServedModels(models))
    assert await lines.answer(call_of({**BODY, "model": "large"})) == LineAnswer(200, '{"id": "second"}', None, 3)
    assert (await lines.answer(call_of({**BODY, "model": "none"}))).status == 404
    assert (first.outcomes(), second.outcomes()) == ({Outcome.REJECTED: 1}, {Outcome.COMPLETED: 1})
