"""Mutations that these tests see: begin the replies before the permit; leave them open when refused; raise a refusal;
follow no replicas; end following at the first error; leave the waiters at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from app.gate.access import Access
from app.gate.ask import Ask
from app.gate.entry import Entry
from app.gate.load import Load
from slo.errors import OverQuota, ReplicaLost
from slo.messages import Document, Endpoint, Failure, GenerateCall, Reply
from slo.priority import PriorityClass
from slo.settings import parse_settings
from tests.app.fake_dispatcher import FakeDispatcher

P0, P1, P2 = PriorityClass
ONE_SLOT: dict[str, Any] = {"engine": {"max_num_seqs": 1}, "admission": {"ahead_ratio": 0}}
CALL = GenerateCall(Endpoint.CHAT, {"a": 1}, P1, "r1")
DOCUMENT = Document("{}")


def entry(values: dict[str, Any] = ONE_SLOT) -> Entry:
    return Entry(parse_settings(values), Access(None))


async def ask(of: Entry) -> Ask:
    return await of.ask_for(CALL, CALL.body, 8, of.tenant_of({}))


async def all_of(replies: AsyncGenerator[Reply, None]) -> list[Reply]:
    return [reply async for reply in replies]


def in_flight(of: Entry) -> int:
    of.gate.check_invariants()
    return of.gate.state()[P1].in_flight.sequences


async def test_ask_is_the_estimate_of_the_body_and_the_tenant() -> None:
    assert await ask(entry()) == Ask("r1", P1, "anonymous", 1.0, Load(1, 2 + 256, 8), True)


async def test_ask_is_charged_to_the_tenants_quota() -> None:
    of = entry()
    tenant = of.tenant_of({})
    limited = type(tenant)("a", requests_per_minute=1)
    await of.ask_for(CALL, CALL.body, 8, limited)
    with pytest.raises(OverQuota):
        await of.ask_for(CALL, CALL.body, 8, limited)


async def test_replies_pass_and_the_permit_comes_back() -> None:
    failure = Failure(ReplicaLost("gone"))
    of, dispatcher = entry(), FakeDispatcher(DOCUMENT, failure)
    replies = of.admitted(await ask(of), CALL, dispatcher)
    assert await anext(replies) == DOCUMENT
    assert in_flight(of) == 1
    assert await all_of(replies) == [failure]
    assert in_flight(of) == 0


async def test_replica_is_not_asked_before_the_gate_admits() -> None:
    of, first, second = entry(), FakeDispatcher(DOCUMENT, asyncio.Event()), FakeDispatcher(DOCUMENT)
    running = of.admitted(await ask(of), CALL, first)
    await anext(running)
    waiting = asyncio.ensure_future(all_of(of.admitted(await ask(of), CALL, second)))
    await asyncio.sleep(0)
    assert second.calls == []
    await running.aclose()
    assert await waiting == [DOCUMENT]
    assert in_flight(of) == 0


@pytest.mark.parametrize("error", [KeyError("broken"), asyncio.CancelledError()])
async def test_permit_comes_back_when_the_replies_break_off(error: BaseException) -> None:
    of = entry()
    replies = of.admitted(await ask(of), CALL, FakeDispatcher(DOCUMENT, error))
    await anext(replies)
    with pytest.raises(type(error)):
        await anext(replies)
    assert in_flight(of) == 0


async def test_refusal_is_yielded_as_a_failure_and_no_replica_is_asked() -> None:
    of, dispatcher = entry(), FakeDispatcher(DOCUMENT)
    of.gate.close()
    (reply,) = await all_of(of.admitted(await ask(of), CALL, dispatcher))
    assert isinstance(reply, Failure)
    assert isinstance(reply.error, ReplicaLost)
    assert dispatcher.calls == []


async def test_entry_follows_the_number_of_replicas_and_goes_on_when_it_cannot_be_told() -> None:
    of = entry()
    told: list[int | Exception | None] = [KeyError("broken"), 3, None]
    all_told = asyncio.Event()

    async def num_replicas() -> int | None:
        if not told:
            all_told.set()
            return None
        following = told.pop(0)
        if isinstance(following, Exception):
            raise following
        return following

    async with of.following(num_replicas, period_s=0):
        await asyncio.wait_for(all_told.wait(), timeout=120)
        held = [of.admitted(await ask(of), CALL, FakeDispatcher(DOCUMENT, asyncio.Event())) for _ in range(3)]
        for replies in held:
            assert await anext(replies) == DOCUMENT  # three slots now
        waiting = asyncio.ensure_future(all_of(of.admitted(await ask(of), CALL, FakeDispatcher(DOCUMENT))))
        await asyncio.sleep(0)
    (reply,) = await waiting
    assert isinstance(reply, Failure)
    assert "shutting down" in reply.error.message
    for replies in held:
        await replies.aclose()
    assert in_flight(of) == 0
