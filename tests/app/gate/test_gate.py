"""Mutations that these tests see: no release on cancellation; no release when admitted in the moment of leaving; admit
the expired; forget the waiters at the end; a timer that never runs; displace nobody; keep the limits when replicas
change; a clock that runs through jumps; no growth of the rate with the replicas."""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any

import pytest

from app.gate.ask import Ask
from app.gate.ending import Ending
from app.gate.gate import Gate
from app.gate.load import Load
from slo.errors import Expired, ReplicaLost, Shed
from slo.priority import PriorityClass
from slo.settings import parse_settings
from tests.app.gate.desk import P0, P1, P2, SMALL, Client, Desk

SLOTS = 4


def small(**admission: Any) -> dict[str, Any]:
    values = copy.deepcopy(SMALL)
    for key, value in admission.items():
        values["admission"][key] = value | values["admission"].get(key, {}) if isinstance(value, dict) else value
    return values


async def served_rate(desk: Desk, priority: PriorityClass, num_here: int) -> float | None:
    """What the gate has measured after twenty seconds, in each of which a request comes and the oldest ends."""
    running = await desk.ask_many(num_here, priority)
    for _ in range(20):
        running.append(await desk.ask(priority))
        await desk.pass_time(1)
        await desk.finish(running.pop(0))
    return desk.state(priority).tokens_per_s


def told(client: Client) -> str:
    return str(client.error)


async def test_gate_admits_at_once_while_there_is_room() -> None:
    desk = Desk()
    clients = await desk.ask_many(SLOTS, P2)
    assert all(client.is_admitted for client in clients)
    assert desk.state(P2).in_flight == Load(SLOTS, 100 * SLOTS, 10 * SLOTS)
    await desk.finish(*clients)
    await desk.end()
    assert desk.endings(P2) == {Ending.ADMITTED: SLOTS}


async def test_gate_admits_the_next_waiter_when_one_ends() -> None:
    desk = Desk()
    running = await desk.ask_many(SLOTS, P1)
    first, second = await desk.ask_many(2, P1)
    assert (first.waits, second.waits) == (True, True)
    await desk.finish(running[2])
    assert (first.is_admitted, second.waits) == (True, True)
    await desk.end()


async def test_gate_admits_by_class_when_several_wait() -> None:
    """Of every class one waits; each that ends lets in one of its own class, and P2 waits while P0 is held."""
    desk = Desk()
    running = {c: await desk.ask_many(SLOTS, c) for c in (P0, P1, P2)}
    waiting = {c: await desk.ask(c) for c in (P2, P1, P0)}
    await desk.finish(running[P2][0], running[P1][0])
    assert all(client.waits for client in waiting.values())
    await desk.finish(running[P0][0])
    assert all(client.is_admitted for client in waiting.values())
    await desk.end()


async def test_queue_gauge_returns_to_zero_when_clients_leave_while_queued() -> None:
    """ray 37943: the gauge of queued requests grew with each client that gave up."""
    desk = Desk()
    running = await desk.ask_many(SLOTS, P1)
    waiting = await desk.ask_many(4, P1)
    assert desk.state(P1).num_queued == 4
    await desk.leave(waiting[1], waiting[3])
    assert desk.state(P1).num_queued == 2
    await desk.leave(waiting[0], waiting[2])
    assert desk.state(P1).num_queued == 0
    assert desk.state(P1).queued == Load()
    await desk.finish(*running)
    await desk.end()
    assert desk.endings(P1) == {Ending.ADMITTED: SLOTS, Ending.LEFT: 4}


async def test_gate_gives_a_place_to_the_next_when_its_client_leaves_in_that_moment() -> None:
    """The permit ends and the first waiter's client leaves in one step of the event loop, in either order."""
    for client_is_first in (True, False):
        desk = Desk()
        running = await desk.ask_many(SLOTS, P1)
        first, second = await desk.ask_many(2, P1)
        if client_is_first:
            first.leave()
            running[0].finish()
        else:
            running[0].finish()
            first.leave()
        await desk.settle()
        assert isinstance(first.error, asyncio.CancelledError)
        assert second.is_admitted
        await desk.end()


async def test_gate_takes_a_permit_back_when_it_was_given_in_the_moment_of_leaving() -> None:
    """Admitted, and its task cancelled before it has run: nobody else would give the permit back."""
    desk = Desk()
    running = await desk.ask_many(SLOTS, P1)
    waiting = await desk.ask(P1)
    desk.clock.now_s += 0.1
    running[0].finish()
    await asyncio.sleep(0)  # the permit is back and given on; the waiter's task is yet to run
    assert waiting.waits
    assert desk.state(P1).num_queued == 0
    await desk.leave(waiting)
    assert isinstance(waiting.error, asyncio.CancelledError)
    assert desk.state(P1).in_flight.sequences == SLOTS - 1
    await desk.end()


async def test_gate_refuses_a_waiter_once_when_it_leaves_in_the_moment_of_its_refusal() -> None:
    desk = Desk()
    await desk.ask_many(SLOTS, P0)
    waiting = await desk.ask(P0)
    desk.clock.now_s += 2
    desk.gate.tick()
    await desk.leave(waiting)
    assert desk.endings(P0) == {Ending.ADMITTED: SLOTS, Ending.EXPIRED: 1}
    await desk.end()


async def test_permit_comes_back_when_what_it_was_for_fails() -> None:
    gate = Gate(parse_settings(SMALL), 1)
    with pytest.raises(KeyError):
        async with gate.permit(Ask("r", P0, "a", 1.0, Load(1, 1, 1))):
            raise KeyError("broken")
    gate.check_invariants()
    assert gate.state()[P0].in_flight == Load()


async def test_expired_request_never_reaches_the_engine_and_its_reason_is_counted() -> None:
    """vllm 16391: a request that had waited too long was computed all the same."""
    desk = Desk()
    running = await desk.ask_many(SLOTS, P0)
    late = await desk.ask(P0)
    await desk.pass_time(1.9)
    in_time = await desk.ask(P0)
    desk.clock.now_s += 0.1  # its deadline comes, before any timer, and a place falls free in that moment
    await desk.finish(running[0])
    assert isinstance(late.error, Expired)
    assert "waited 2 s" in told(late)
    assert in_time.is_admitted
    await desk.end()
    assert desk.endings(P0) == {Ending.ADMITTED: SLOTS + 1, Ending.EXPIRED: 1}


async def test_gate_expires_waiters_by_its_own_timer() -> None:
    """The one test on a real clock: a wait of 10 ms ends by itself."""
    values = small(p0={})
    values["admission"]["p0"]["queue_timeout_s"] = 0.01
    gate = Gate(parse_settings(values), 1)
    running = [Client(gate, Ask(f"r{i}", P0, "a", 1.0, Load(1, 1, 1))) for i in range(SLOTS)]
    waiting = Client(gate, Ask("late", P0, "a", 1.0, Load(1, 1, 1)))
    await asyncio.wait_for(waiting.task, timeout=120)
    assert isinstance(waiting.error, Expired)
    gate.check_invariants()
    for client in running:
        client.finish()
    await asyncio.gather(*(client.task for client in running))


async def test_gate_tells_each_waiter_once_when_it_is_closed() -> None:
    """GIE 1982: a queue was collected with waiters in it, who then waited for ever."""
    desk = Desk()
    running = [await desk.ask(c) for c in (P0, P1, P2) for _ in range(SLOTS)]
    waiting = [await desk.ask(c) for c in (P0, P1, P2) for _ in range(2)]
    left = waiting[3]
    left.leave()
    desk.gate.close()
    await desk.settle()
    assert all(isinstance(client.error, ReplicaLost) for client in waiting if client is not left)
    assert all(client.num_ends == 1 for client in waiting)
    late = await desk.ask(P0)
    assert isinstance(late.error, ReplicaLost)
    assert "shutting down" in told(late)
    assert all(not client.task.done() for client in running)  # what is in flight goes on
    await desk.finish(*running)
    await desk.end()
    assert desk.endings(P0) == {Ending.ADMITTED: SLOTS, Ending.CLOSED: 3}
    assert desk.endings(P1) == {Ending.ADMITTED: SLOTS, Ending.CLOSED: 1, Ending.LEFT: 1}


async def test_gate_refuses_the_least_urgent_when_the_queues_are_full() -> None:
    """P2 first, P1 next, P0 last: each newcomer that is more urgent takes the place of the one served last."""
    desk = Desk()
    for c in (P0, P1, P2):
        await desk.ask_many(SLOTS, c)
    batch = await desk.ask_many(5, P2)
    standard = await desk.ask_many(4, P1)
    urgent = await desk.ask_many(3, P0)
    assert isinstance((await desk.ask(P2)).error, Shed)
    assert all(client.waits for client in batch + standard + urgent)

    more_urgent = await desk.ask_many(7, P0)
    assert all(client.waits for client in more_urgent)
    assert all(isinstance(client.error, Shed) and "gave way" in told(client) for client in batch)
    assert [client.waits for client in standard] == [True, True, False, False]
    assert isinstance((await desk.ask(P1)).error, Shed)
    assert desk.endings(P0) == {Ending.ADMITTED: SLOTS}
    await desk.ask_many(2, P0)
    assert isinstance((await desk.ask(P0)).error, Shed)  # only P0 is left
    await desk.end()


async def test_gate_refuses_the_flood_and_not_the_other_tenant_when_the_queue_is_full() -> None:
    desk = Desk()
    running = await desk.ask_many(SLOTS, P2, "flood")
    flood = await desk.ask_many(5, P2, "flood")
    other = await desk.ask(P2, "other")
    assert other.waits
    assert [client.waits for client in flood] == [True, True, True, True, False]
    await desk.finish(running[0], running[1])
    assert other.is_admitted
    await desk.end()


async def test_gate_waits_for_a_replica_whatever_the_rate_was_and_knows_it_when_one_is_back() -> None:
    desk = Desk()
    rate = await served_rate(desk, P1, SLOTS + 2)
    assert rate == pytest.approx(100, rel=0.1)
    desk.gate.set_num_replicas(0)
    await desk.settle()
    for _ in range(5):
        await desk.pass_time(20)
        assert (await desk.ask(P1)).waits
    desk.gate.set_num_replicas(2)
    await desk.settle()
    assert desk.state(P1).tokens_per_s == pytest.approx(2 * rate, rel=0.01)
    await desk.end()


async def test_gate_lets_p2_in_while_p0_is_held_when_it_has_waited_for_its_aging_period() -> None:
    values = small(p0={})
    values["admission"]["p0"]["queue_timeout_s"] = 1000
    desk = Desk(values)
    await desk.ask_many(SLOTS, P0)
    batch = await desk.ask_many(SLOTS, P2)
    urgent = await desk.ask(P0)
    held = await desk.ask(P2)
    await desk.finish(batch[0])
    await desk.pass_time(29)
    assert held.waits
    await desk.pass_time(2)
    assert held.is_admitted
    assert urgent.waits
    await desk.end()


async def test_gate_estimates_waits_by_what_it_has_measured_and_refuses_early() -> None:
    """Four in flight of 100 tokens, one ends each second: 100 tokens a second. P0 may wait for 2 s."""
    desk = Desk()
    assert await served_rate(desk, P0, SLOTS) == pytest.approx(100, rel=0.1)
    assert (await desk.ask(P0, tokens=150)).waits
    refused = await desk.ask(P0, tokens=150)
    assert refused.waits
    early = await desk.ask(P0)
    assert isinstance(early.error, Shed)
    assert "too near the 2 s" in told(early)
    assert early.error.retry_after_s in (3, 4)
    await desk.end()
    assert desk.endings(P0)[Ending.WAIT_TOO_LONG] == 1


async def test_gate_admits_more_when_replicas_are_added_and_drains_when_they_go() -> None:
    desk = Desk()
    clients = await desk.ask_many(SLOTS + 4, P1)
    desk.gate.set_num_replicas(2)
    await desk.settle()
    assert all(client.is_admitted for client in clients)
    desk.gate.set_num_replicas(1)
    waiting = await desk.ask(P1)
    await desk.finish(*clients[:4])
    assert waiting.waits
    await desk.finish(clients[4])
    assert waiting.is_admitted
    await desk.end()


async def test_gate_expects_more_of_more_replicas() -> None:
    desk = Desk()
    running = await desk.ask_many(SLOTS, P2)
    for _ in range(10):
        running.append(await desk.ask(P2))
        await desk.pass_time(1)
        await desk.finish(running.pop(0))
    before = desk.state(P2).tokens_per_s
    desk.gate.set_num_replicas(3)
    after = desk.state(P2).tokens_per_s
    assert before is not None
    assert after == pytest.approx(3 * before)
    await desk.end()


async def test_gate_answers_that_nothing_can_serve_when_no_replica_comes_in_time() -> None:
    desk = Desk(num_replicas=0)
    refused = await desk.ask(P0)
    assert refused.waits
    await desk.pass_time(3)
    assert isinstance(refused.error, ReplicaLost)
    woken = await desk.ask(P0)
    desk.gate.set_num_replicas(1)
    await desk.settle()
    assert woken.is_admitted
    await desk.end()
    assert desk.endings(P0) == {Ending.NO_REPLICA: 1, Ending.ADMITTED: 1}


async def test_waiters_are_kept_when_the_last_replica_goes_until_their_deadline() -> None:
    desk = Desk()
    await desk.ask_many(SLOTS, P1)
    kept = await desk.ask(P1)
    desk.gate.set_num_replicas(0)
    await desk.finish(*desk.clients[:SLOTS])
    assert kept.waits
    desk.gate.set_num_replicas(1)
    await desk.settle()
    assert kept.is_admitted
    await desk.end()


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_gate_expires_nobody_when_the_clock_jumps(jump_s: float) -> None:
    desk = Desk()
    await desk.ask_many(SLOTS, P1)
    waiting = await desk.ask(P1)
    desk.clock.now_s += jump_s
    desk.gate.tick()
    await desk.settle()
    assert waiting.waits
    await desk.pass_time(31)
    assert isinstance(waiting.error, Expired)
    await desk.end()


async def test_gate_logs_a_refusal_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(num_replicas=0)
    with caplog.at_level(logging.INFO, "expresslane.gate"):
        await desk.ask(P0, "team-a")
        await desk.pass_time(3)
    assert [record.getMessage() for record in caplog.records] == [
        "request_id=r0 class=P0 tenant='team-a' reason=no_replica"
    ]
