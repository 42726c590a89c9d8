"""Tenants that share the run slots, at the gate. Mutations that these tests see: nothing is surplus; surplus holds
others up; what is larger than a share has no turn; a limit that is set goes to surplus whole; shares by an old weight;
nobody looked at after a refusal."""

from __future__ import annotations

import pytest

from slo.priority import PriorityClass
from tests.app.gate.desk import P0, P1, P2, Desk

SLOTS = 4


async def test_gate_gives_a_tenant_its_share_at_once_when_another_floods() -> None:
    """A tenant among others gets three of four slots by P1 as P1, and the last as surplus, which yields in the engine:
    so the other's first one does not wait, and of the next ones the flood has less."""
    desk = Desk()
    flood = await desk.ask_many(SLOTS + 2, P1, "flood", is_alone=False)
    assert [client.counts_as for client in flood[:SLOTS]] == [P1, P1, P1, P2]
    assert all(client.waits for client in flood[SLOTS:])
    first, second, third = await desk.ask_many(3, P1, "other", is_alone=False)
    assert (first.is_admitted, first.counts_as) == (True, P1)
    assert second.waits
    assert desk.state(P1).surplus.sequences == 1
    await desk.finish(flood[0])
    assert (second.is_admitted, second.counts_as) == (True, P1)  # its share is of two
    await desk.finish(flood[3])
    assert third.waits  # beyond its share, as is the flood's next, which came before it
    await desk.finish(flood[1])
    assert flood[SLOTS].counts_as is P1  # one of its share
    await desk.end()


async def test_gate_tells_each_request_how_much_of_its_share_its_tenant_has_in_use() -> None:
    """Of P0 and P1; not where there is one tenant, nor of P2."""
    desk = Desk({"engine": {"max_num_seqs": 8}})
    for tenant, priority, is_alone, delays_s in (
        ("a", P1, False, [0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]),  # alone, its share is of six; the last is surplus
        ("b", P1, False, [0, 1 / 4, 2 / 4]),  # with another, of four
        ("c", P0, True, [0, 0, 0]),
        ("d", P2, False, [0, 0, 0]),
    ):
        clients = await desk.ask_many(len(delays_s), priority, tenant, is_alone=is_alone)
        assert [client.standing.delay_s for client in clients] == pytest.approx(delays_s)
    await desk.end()


async def test_gate_makes_nothing_surplus_while_a_class_leaves_slots() -> None:
    """However many ask, up to half of the slots, and three quarters where one asks alone; a tenant keeps its share for
    a minute after it has asked."""
    desk = Desk({"engine": {"max_num_seqs": 8}})
    clients = [await desk.ask(P0, tenant, is_alone=False) for tenant in "abcaaabc"]
    assert [client.counts_as for client in clients] == [P0] * 4 + [P1, P1, P0, P0]
    await desk.finish(*clients)
    clients = await desk.ask_many(7, P0, "b", is_alone=False)
    assert [client.counts_as for client in clients] == [P0] * 4 + [P1] * 3
    await desk.finish(*clients)
    await desk.pass_time(62)
    clients = await desk.ask_many(7, P0, "c", is_alone=False)
    assert [client.counts_as for client in clients] == [P0] * 6 + [P1]
    clients = await desk.ask_many(3, P0, "a", is_alone=False)
    assert [client.counts_as for client in clients] == [P0] * 3
    await desk.end()


@pytest.mark.parametrize(("slots", "tenants"), [(1, 2), (2, 3), (4, 5), (8, 9)])
@pytest.mark.parametrize("priority", [P0, P1])
async def test_gate_serves_a_request_larger_than_a_share_in_its_turn(
    slots: int, tenants: int, priority: PriorityClass
) -> None:
    """Others flood the class with single sequences, which are within their shares: two at once never are."""
    desk = Desk({"engine": {"max_num_seqs": slots}, "admission": {"p0": {"queue_timeout_s": 30}}})
    flood = [
        await desk.ask(priority, f"t{i % tenants}", weight=2, is_alone=False) for i in range(4 * slots + 4 * tenants)
    ]
    large = await desk.ask(priority, "x", sequences=2, is_alone=False)
    single = await desk.ask(priority, "x", is_alone=False)
    for i in range(4 * slots + 4 * tenants):
        if large.is_admitted:
            break
        await desk.finish(next(c for c in flood if c.is_admitted and not c.task.done()))
        flood.append(await desk.ask(priority, f"t{i % tenants}", weight=2, is_alone=False))
    assert large.is_admitted
    assert large.counts_as is priority.demoted()
    assert large.error is single.error is None
    await desk.end()


@pytest.mark.parametrize("limit", [{"max_in_flight": 16}, {"max_in_flight_tokens": 1600}])
async def test_gate_leaves_a_part_of_a_limit_that_is_set_to_another_tenant(limit: dict[str, int]) -> None:
    desk = Desk({"engine": {"max_num_seqs": 16}, "admission": {"p0": {"queue_timeout_s": 2, **limit}}})
    await desk.ask(P0, "b", is_alone=False)
    await desk.ask_many(30, P0, "a", is_alone=False)
    others = await desk.ask_many(3, P0, "b", is_alone=False)
    assert all(client.is_admitted and client.counts_as is P0 for client in others)
    await desk.end()


async def test_gate_reckons_shares_by_the_weights_of_now() -> None:
    """A reload of the keys raises a weight: what waits since before has the larger share too."""
    desk = Desk({"engine": {"max_num_seqs": 8}})
    rivals = await desk.ask_many(10, P1, "b", is_alone=False)
    waiting = await desk.ask_many(10, P1, "a", is_alone=False)
    await desk.ask(P1, "a", weight=5, is_alone=False)
    await desk.finish(*[client for client in rivals if client.is_admitted])
    admitted = [client.counts_as for client in waiting if client.is_admitted]
    assert admitted.count(P1) == 6
    await desk.end()


async def test_gate_looks_again_when_a_refusal_has_changed_the_shares() -> None:
    """Another tenant is refused, and has asked: what waits is surplus now, and holds P1 up no more."""
    values = {"max_held_bytes": 100, "ahead_ratio": 0, "p0": {"queue_timeout_s": 2, "max_in_flight_tokens": 1000}}
    desk = Desk({"engine": {"max_num_seqs": 4}, "admission": values})
    await desk.ask_many(2, P0, "a", tokens=400, is_alone=False)
    waiting = await desk.ask(P0, "a", tokens=400, is_alone=False)
    held = await desk.ask(P1, "c", is_alone=False)
    assert waiting.waits
    assert held.waits
    refused = await desk.ask(P0, "b", num_bytes=99, is_alone=False)
    assert refused.error is not None
    assert held.is_admitted
    await desk.end()


async def test_gate_lets_surplus_wait_and_not_the_batch_behind_it() -> None:
    desk = Desk()
    await desk.ask_many(SLOTS, P1, "flood", is_alone=False)
    waiting = await desk.ask(P1, "flood", is_alone=False)
    assert waiting.waits
    batch = await desk.ask_many(SLOTS, P2, "batch", is_alone=False)
    assert all(client.is_admitted and client.counts_as is P2 for client in batch)
    await desk.end()
