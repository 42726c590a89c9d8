"""The API behind the gate: keys, classes that a key may have, quotas, refusals for load, and what the logs show of it.

Mutations that these tests see: a route without a key; the key asked for after the body is read; no header for a lowered
class; the permit not given back; a waiter left in the queue whose client has gone; an operators' route without its key;
the log told the tenant when the request has its class, not before.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.gate.access import Access
from app.gate.entry import Entry
from app.gate.keys import KeyStore, hash_key
from app.gate.load import Load
from app.gate.tenant import Tenant
from slo.messages import Chunk, Document
from slo.priority import PriorityClass
from slo.settings import Settings, parse_settings
from tests.app.conftest import RecordLines
from tests.app.exchange import Exchange
from tests.app.fake_dispatcher import FakeDispatcher
from tests.app.one_model import api_of_one

P0, P1, P2 = PriorityClass
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
ANSWER = Document('{"id":"x"}')
ONE_SLOT: dict[str, Any] = {"engine": {"max_num_seqs": 1}, "admission": {"ahead_ratio": 0, "p2": {"max_queued": 1}}}
TENANTS = {
    "xl-chat": Tenant("chat", P0),
    "xl-web": Tenant("web", P1),
    "xl-strict": Tenant("strict", P1, above_class="refuse"),
    "xl-small": Tenant("small", P1, requests_per_minute=1),
    "xl-short": Tenant("short", P1, tokens_per_minute=10),
}
KEYS = KeyStore((hash_key(key), tenant) for key, tenant in TENANTS.items())


class Served:
    """The application over a fake dispatcher."""

    def __init__(self, *script: Any, values: dict[str, Any] | None = None, keyed: bool = True) -> None:
        self.dispatcher = FakeDispatcher(*script)
        settings: Settings = parse_settings(values or {})
        self.entry = Entry(settings, Access((lambda: KEYS) if keyed else None))
        self.app: FastAPI = api_of_one(self.dispatcher, settings, entry=self.entry)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def ask(self, key: str | None = None, body: Any = BODY, path: str = CHAT, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        return await self.client.post(path, content=json.dumps(body).encode(), headers=sent)

    def at_gate(self, priority: PriorityClass) -> tuple[int, int]:
        """In flight and queued."""
        self.entry.gate.check_invariants()
        state = self.entry.gate.state()[priority]
        return state.in_flight.sequences, state.num_queued


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("key", [None, "xl-wrong", ""])
async def test_request_without_a_good_key_is_answered_401(path: str, key: str | None, records: RecordLines) -> None:
    served = Served(ANSWER)
    response = await served.ask(key, path=path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert (error_of(response)["type"], error_of(response)["code"]) == ("invalid_request_error", "invalid_api_key")
    assert served.dispatcher.calls == []
    assert records.outcomes == ["rejected"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny"])
async def test_models_are_told_with_a_key_only(path: str) -> None:
    served = Served()
    assert (await served.client.get(path)).status_code == 401
    answer = await served.client.get(path, headers={"Authorization": "Bearer xl-web"})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_need_no_key(path: str) -> None:
    assert (await Served().client.get(path)).status_code == 200


async def test_body_is_not_read_when_the_key_is_not_good() -> None:
    served = Served(ANSWER)
    exchange = Exchange(served.app, CHAT)  # no part of the body is ever sent
    await exchange.ended()
    assert (await exchange.next_message())["status"] == 401


async def test_request_with_a_good_key_is_answered() -> None:
    served = Served(ANSWER)
    response = await served.ask("xl-chat", x_priority="P0")
    assert (response.status_code, response.headers["x-priority-class"]) == (200, "P0")
    assert "x-priority-class-lowered-from" not in response.headers
    assert served.dispatcher.calls[0].priority is P0


async def test_class_above_the_keys_is_lowered_and_told(records: RecordLines) -> None:
    served = Served(ANSWER)
    response = await served.ask("xl-web", x_priority="P0")
    assert (response.status_code, response.headers["x-priority-class"]) == (200, "P1")
    assert response.headers["x-priority-class-lowered-from"] == "P0"
    assert served.dispatcher.calls[0].priority is P1
    assert records.closed[0].reason == "header x-priority, lowered"


async def test_class_above_the_keys_is_refused_when_that_is_the_rule() -> None:
    served = Served(ANSWER)
    response = await served.ask("xl-strict", x_priority="P0")
    assert response.status_code == 403
    assert (error_of(response)["code"], error_of(response)["param"]) == ("class_not_allowed", "x-priority")
    assert served.dispatcher.calls == []


async def test_request_over_its_quota_is_answered_429_and_told_when_to_come_again(records: RecordLines) -> None:
    served = Served(ANSWER)
    assert (await served.ask("xl-small")).status_code == 200
    response = await served.ask("xl-small")
    assert response.status_code == 429
    assert 1 <= int(response.headers["retry-after"]) <= 120
    assert error_of(response)["code"] == "rate_limit_exceeded"
    assert records.outcomes == ["completed", "rejected"]
    assert (await served.ask("xl-web")).status_code == 200  # its own quota


async def test_request_larger_than_its_tenants_minute_is_answered_413() -> None:
    response = await Served(ANSWER).ask("xl-short")
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")


async def test_everyone_is_served_when_no_keys_are_configured() -> None:
    response = await Served(ANSWER, keyed=False).ask("xl-whatever", x_priority="P0")
    assert (response.status_code, response.headers["x-priority-class"]) == (200, "P0")


async def test_request_is_answered_429_with_retry_after_when_the_queue_is_full(records: RecordLines) -> None:
    served = Served(asyncio.Event(), values=ONE_SLOT, keyed=False)
    batch = {"x-priority": "P2"}
    exchanges = [Exchange(served.app, CHAT, BODY, batch) for _ in range(2)]
    await served.dispatcher.called.wait()
    assert served.at_gate(P2) == (1, 1)
    response = await served.ask(x_priority="P2")
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert (error_of(response)["type"], error_of(response)["code"]) == ("rate_limit_error", "overloaded")
    assert response.headers["x-priority-class"] == "P2"
    for exchange in exchanges:
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.ended()
    assert served.at_gate(P2) == (0, 0)
    assert sorted(records.outcomes) == ["cancelled", "cancelled", "shed"]


async def test_request_is_answered_503_when_nothing_can_serve(records: RecordLines) -> None:
    served = Served(ANSWER, keyed=False)
    served.entry.gate.close()
    response = await served.ask()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert records.outcomes == ["replica_lost"]
    assert served.dispatcher.calls == []


@pytest.mark.parametrize("stream", [True, False])
async def test_permit_is_held_until_the_answer_is_complete(stream: bool) -> None:
    script = (Chunk("data: {}\n\n"), Chunk("data: [DONE]\n\n")) if stream else (ANSWER,)
    served = Served(*script, keyed=False)
    response = await served.ask(body=BODY | {"stream": stream})
    assert response.status_code == 200
    assert served.at_gate(P1) == (0, 0)


async def test_permit_comes_back_when_the_client_leaves_midway() -> None:
    served = Served(Chunk("data: {}\n\n"), asyncio.Event(), keyed=False)
    exchange = Exchange(served.app, CHAT, BODY | {"stream": True})
    await exchange.next_message()
    await exchange.next_events()
    assert served.at_gate(P1) == (1, 0)
    exchange.disconnect()
    await exchange.ended()
    assert served.at_gate(P1) == (0, 0)
    assert served.entry.gate.state()[P1].in_flight == Load()


@pytest.mark.parametrize("script", [(KeyError("broken"),), (Chunk("data: {}\n\n"), KeyError("broken"))])
async def test_permit_comes_back_when_the_dispatcher_breaks(script: tuple[Any, ...]) -> None:
    served = Served(*script, keyed=False)
    exchange = Exchange(served.app, CHAT, BODY | {"stream": True})
    with pytest.raises(KeyError):
        await exchange.ended()
    assert served.at_gate(P1) == (0, 0)


@pytest.mark.parametrize(
    ("key", "values", "outcome", "tenant"),
    [
        ("xl-chat", {}, "completed", "'chat'"),
        ("xl-strict", {}, "rejected", "'strict'"),  # P0, which it may not ask for
        ("xl-short", {}, "rejected", "'short'"),  # more than it has in a minute
        ("xl-chat", {"ingress": {"max_body_bytes": 10}}, "rejected", "'chat'"),
        ("xl-nobodys", {}, "rejected", "none"),
        (None, {}, "rejected", "none"),
    ],
)
async def test_log_names_the_tenant_however_its_request_ended(
    key: str | None, values: dict[str, Any], outcome: str, tenant: str, records: RecordLines
) -> None:
    await Served(ANSWER, values=values).ask(key, x_priority="P0")
    assert [(line.outcome, line.tenant) for line in records.closed] == [(outcome, tenant)]


async def test_keys_are_never_in_logs_or_answers(caplog: pytest.LogCaptureFixture, records: RecordLines) -> None:
    served = Served(ANSWER)
    answers = []
    with caplog.at_level(0):
        for key in (*TENANTS, "xl-nobodys"):
            for priority in ("P0", "P1"):
                answers.append(await served.ask(key, x_priority=priority))
    told = [answer.text + str(answer.headers) for answer in answers]
    logged = [record.getMessage() for record in caplog.records] + records.all_text
    assert {answer.status_code for answer in answers} == {200, 401, 403, 413, 429}
    assert logged
    assert not any("xl-" in text for text in told + logged)


async def test_operators_routes_ask_for_their_key_when_it_is_set() -> None:
    served = Served(values={"tenants": {"operator_key_sha256": hash_key("operators")}})
    assert (await served.client.get("/metrics")).status_code == 401
    known = await served.client.get("/metrics", headers={"Authorization": "Bearer operators"})
    assert known.status_code == 404  # these routes are not there without a controller
    assert (await served.client.get("/healthz")).status_code == 200
