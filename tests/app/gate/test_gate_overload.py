"""A gate before an engine that serves a fixed number of tokens a second, on a clock that a test moves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from app.gate.ending import Ending
from slo.errors import Shed
from slo.priority import PriorityClass
from tests.app.gate.desk import P0, P1, P2, Client, Desk

STEP_S = 0.25
SLOTS = 8


class Fleet:
    """An engine with `SLOTS` that serves a request in about `service_s`: the most urgent first, by what each counts as,
    as the scheduler does; within a class in the order of admission, without preempting equals."""

    def __init__(self, values: Mapping[str, Any], service_s: float) -> None:
        self.desk = Desk(values)
        self.service_s = service_s
        self.left_s: dict[Client, float] = {}  # in the order of admission
        self.asked_s: dict[Client, float] = {}
        self.started_s: dict[Client, float] = {}
        self.most_held = 0
        self.chance = random.Random(1)

    async def ask(self, priority: PriorityClass, tenant: str = "a", **options: Any) -> Client:
        client = await self.desk.ask(priority, tenant, **options)
        self.asked_s[client] = self.desk.clock.now_s
        return client

    async def step(self) -> None:
        """Serves for `STEP_S`."""
        for client in self.desk.clients:
            if client.is_admitted and not client.task.done() and client not in self.left_s:
                self.left_s[client] = self.service_s * self.chance.uniform(0.5, 1.5)
        engine = sorted(self.left_s, key=lambda c: (c.counts_as.level, c not in self.started_s))
        for client in engine[:SLOTS]:
            self.started_s.setdefault(client, self.desk.clock.now_s)
            self.left_s[client] -= STEP_S
            if self.left_s[client] <= 0:
                client.finish()
                del self.left_s[client]
        self.desk.clock.now_s += STEP_S
        self.desk.gate.tick()
        await self.desk.settle()
        self.most_held = max(self.most_held, sum(not c.task.done() for c in self.desk.clients))

    def forget_ended(self) -> list[Client]:
        """Those that have ended since the last time, no longer looked at."""
        ended = [c for c in self.desk.clients if c.task.done()]
        self.desk.clients = [c for c in self.desk.clients if not c.task.done()]
        return ended

    def waits_s(self, clients: list[Client]) -> list[float]:
        """From asking to the first step, sorted."""
        return sorted(self.started_s[c] - self.asked_s[c] for c in clients if c in self.started_s)


VALUES: dict[str, Any] = {
    "engine": {"max_num_seqs": SLOTS},
    "admission": {
        "p0": {"queue_timeout_s": 2, "max_queued": 20},
        "p1": {"queue_timeout_s": 10, "max_queued": 40},
        "p2": {"queue_timeout_s": 20, "max_queued": 60},
    },
}


async def test_overload_that_lasts_sheds_p2_first_with_retry_after_and_memory_stays_flat() -> None:
    """vllm 18826: twice what the fleet can serve, for five minutes. The queue there grew without bound."""
    fleet = Fleet(VALUES, service_s=1.0)  # 8 requests a second, 4 in two steps, in which 8 come
    ended: list[Client] = []
    held_after_a_minute = 0
    for step in range(1200):
        for priority in (P0, P1, P2, P2) if step % 2 else (P1, P2, P2, P2):
            await fleet.ask(priority)
        await fleet.step()
        ended += fleet.forget_ended()
        if step == 240:
            held_after_a_minute = fleet.most_held
            assert len(asyncio.all_tasks()) <= held_after_a_minute + 5
    shed = [c for c in ended if isinstance(c.error, Shed)]
    assert {c.ask.priority for c in shed} == {P2}
    assert len(shed) > 1000
    assert all(1 <= c.error.retry_after_s <= 120 for c in shed if isinstance(c.error, Shed))
    assert fleet.most_held == held_after_a_minute  # what a minute of it takes, five minutes do
    assert len(asyncio.all_tasks()) <= fleet.most_held + 5
    assert max(fleet.waits_s([c for c in ended if c.ask.priority is P0])) <= 2 * STEP_S
    assert fleet.desk.endings(P0).keys() == {Ending.ADMITTED}
    await fleet.desk.end()


async def test_overload_by_p1_alone_sheds_p1_and_no_p0() -> None:
    fleet = Fleet(VALUES, service_s=1.0)
    ended: list[Client] = []
    for _ in range(400):
        for priority in (P0, P1, P1, P1, P1):
            await fleet.ask(priority)
        await fleet.step()
        ended += fleet.forget_ended()
    assert {c.ask.priority for c in ended if isinstance(c.error, Shed)} == {P1}
    await fleet.desk.end()


async def test_early_refusal_keeps_those_who_are_let_in_from_expiring() -> None:
    """Once the rate is known, who is queued is served in time: at most one in twenty of the rest expires."""
    fleet = Fleet(VALUES, service_s=2.0)
    for _ in range(1200):
        for _ in range(3):
            await fleet.ask(P1, tokens=fleet.chance.randint(50, 150))
        await fleet.step()
        fleet.forget_ended()
    endings = fleet.desk.endings(P1)
    assert endings[Ending.WAIT_TOO_LONG] > 1000
    assert endings.get(Ending.EXPIRED, 0) * 20 <= endings[Ending.ADMITTED]
    await fleet.desk.end()


async def _flood(floods: tuple[str, ...], quiet_each: int = 20) -> tuple[list[float], int]:
    """The waits of tenant `quiet`, which asks once in `quiet_each` steps on average, beside tenants that ask each step;
    and how many were served in all."""
    fleet, quiet, num_served = Fleet(VALUES, service_s=5.0), [], 0
    for _ in range(800):
        for tenant in floods:
            await fleet.ask(P1, tenant, is_alone=False)
        if fleet.chance.random() < 1 / quiet_each:
            quiet.append(await fleet.ask(P1, "quiet", is_alone=False))
        await fleet.step()
        num_served += sum(client.is_admitted for client in fleet.forget_ended())
    await fleet.desk.end()
    waits_s = fleet.waits_s(quiet)
    assert len(waits_s) == len(quiet) > 600 / quiet_each
    return waits_s, num_served


async def test_tenant_is_served_as_if_alone_when_another_floods_its_class() -> None:
    """20 to 1, and more than the fleet can serve: the quiet tenant finds a slot at once, as alone, while it needs no
    more than its share of four; and the flood has every slot that it leaves."""
    alone, _ = await _flood(())
    beside, num_served = await _flood(("flood",))
    assert max(alone) == 0
    assert max(beside[: len(beside) * 98 // 100]) == 0
    assert num_served >= 0.9 * 800 * STEP_S * SLOTS / 5.0


async def test_tenant_is_served_as_if_alone_when_three_others_flood_and_it_needs_its_share() -> None:
    """Each of the floods has its share as what it is, two slots, and the rest as surplus, of which some yields: at
    once, or when one of those that had more, while the quiet tenant had nothing, has ended."""
    waits, num_served = await _flood(("flood", "other flood", "third flood"), quiet_each=40)
    assert max(waits[: len(waits) * 8 // 10]) == 0
    assert max(waits[: len(waits) * 9 // 10]) <= STEP_S
    assert num_served >= 0.9 * 800 * STEP_S * SLOTS / 5.0
