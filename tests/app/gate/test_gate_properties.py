"""What holds whatever comes: arrivals, ends, clients that leave, time, replicas that come and go.

Mutations that these tests see: let the less urgent pass those who are held; no displacement; a limit of a class left
out; no bound on bytes; a place, or a permit just given, kept when its client leaves."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.gate.ending import Ending
from app.gate.limits import GateLimits, derive_limits
from app.gate.load import Load, total
from slo.errors import Expired, ReplicaLost, Shed
from slo.priority import PriorityClass
from tests.app.gate.desk import P0, P1, P2, Client, Desk

ROOMY: dict[str, Any] = {
    "engine": {"max_num_seqs": 3},
    "replicas": {"max_ongoing_requests": 6},
    "admission": {
        "max_held_bytes": 900,
        "p0": {"queue_timeout_s": 4, "max_queued": 2, "max_queued_tokens": 400},
        "p1": {"queue_timeout_s": 30, "max_queued": 3, "max_queued_tokens": 600, "max_in_flight_tokens": 500},
        "p2": {"queue_timeout_s": 60, "max_queued": 4, "max_queued_tokens": 800},
    },
    "scheduler": {"fairness": {"aging_s": {"p1": 5, "p2": 7}}},
}
NARROW: dict[str, Any] = {
    "engine": {"max_num_seqs": 1},
    "admission": {
        "ahead_ratio": 0,
        "p0": {"queue_timeout_s": 8, "max_queued": 1},
        "p1": {"queue_timeout_s": 30, "max_queued": 1},
        "p2": {"queue_timeout_s": 60, "max_queued": 1},
    },
    "scheduler": {"fairness": {"aging_s": {"p1": 5, "p2": 7}}},
}
MAX_SEQUENCES = 4
AGING_S = {P0: None, P1: 5, P2: 7}
ASKS = st.tuples(
    st.just("ask"),
    st.sampled_from([P0, P0, P1, P2, P2]),
    st.sampled_from(["a", "a", "b", "c"]),
    st.integers(1, MAX_SEQUENCES),
    st.integers(1, 300),
)
STEPS = st.lists(
    st.one_of(
        ASKS,
        ASKS,
        ASKS,
        st.tuples(st.sampled_from(["finish", "finish", "leave", "race", "race"]), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.sampled_from([1, 1, 1, 3, 8])),
        st.tuples(st.just("replicas"), st.sampled_from([1, 1, 2, 0])),
    ),
    min_size=25,
    max_size=60,
)


class Watched:
    """A desk whose every step is held against what must be true."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.desk = Desk(values)
        self.num_replicas = 1
        self.arrived_s: dict[Client, float] = {}

    async def run(self, steps: list[tuple[Any, ...]]) -> None:
        for step in steps:
            before = self.desk.gate.state()
            were_waiting = [client for client in self.desk.clients if client.waits]
            await self._do(step)
            self._check_limits(before)
            self._check_order(were_waiting)
        await self.desk.end()
        self._check_ends()

    async def _do(self, step: tuple[Any, ...]) -> None:
        desk = self.desk
        match step:
            case ("ask", priority, tenant, sequences, tokens):
                client = await desk.ask(
                    priority, tenant, sequences=sequences, tokens=tokens, num_bytes=tokens, is_alone=tenant == "a"
                )
                self.arrived_s[client] = desk.clock.now_s
                self._check_refusal(client)
            case ("finish", number):
                if running := [c for c in desk.clients if c.is_admitted and not c.task.done()]:
                    await desk.finish(running[number % len(running)])
            case ("leave", number):
                if there := [c for c in desk.clients if not c.task.done()]:
                    await desk.leave(there[number % len(there)])
            case ("race", number):
                running = [c for c in desk.clients if c.is_admitted and not c.task.done()]
                waiting = [c for c in desk.clients if c.waits]
                if running and waiting:
                    running[number % len(running)].finish()
                    await asyncio.sleep(0)  # the permit is given on, and who got it has not run yet
                    await desk.leave(waiting[number % len(waiting)])
            case ("pass", seconds):
                await desk.pass_time(seconds)
            case ("replicas", num):
                self.num_replicas = num
                desk.gate.set_num_replicas(num)
                await desk.settle()

    def _check_limits(self, before: Any) -> None:
        """None is exceeded, save by what was there before a replica went."""
        limits = self._limits()
        now = self.desk.gate.state()
        all_before = sum(state.in_flight.sequences for state in before.values())
        for c in PriorityClass:
            of = limits.classes[c]
            within, was_within = (state[c].in_flight - state[c].surplus for state in (now, before))
            assert within.sequences <= max(of.in_flight.sequences, was_within.sequences)
            assert within.tokens <= max(of.in_flight.tokens, was_within.tokens)
            assert now[c].in_flight.sequences <= max(of.in_flight_at_most.sequences, before[c].in_flight.sequences)
            assert now[c].in_flight.tokens <= max(of.in_flight_at_most.tokens, before[c].in_flight.tokens)
            if now[c].surplus.sequences > before[c].surplus.sequences:
                assert now[c].in_flight.sequences < of.in_flight_with_surplus.sequences + MAX_SEQUENCES
                assert now[c].in_flight.tokens <= of.in_flight_with_surplus.tokens
            room = limits.queue_room(c)
            queued = [now[other].queued for other in PriorityClass if not other.outranks(c)]
            assert sum(load.sequences for load in queued) <= room.sequences
            assert sum(load.tokens for load in queued) <= room.tokens
        in_flight = sum(state.in_flight.sequences for state in now.values())
        assert in_flight <= max(limits.classes[P0].in_flight_of_all, all_before)
        held = sum(state.in_flight.num_bytes + state.queued.num_bytes for state in now.values())
        assert held <= limits.max_held_bytes

    def _check_refusal(self, client: Client) -> None:
        """Nobody is refused for want of room that those less urgent could have made."""
        if not isinstance(client.error, Shed) or "no room" not in str(client.error):
            return
        limits, state, own = self._limits(), self.desk.gate.state(), client.ask.priority
        stay = {c: Load() if own.outranks(c) else state[c].queued for c in PriorityClass}
        held_bytes = sum(stay[c].num_bytes + state[c].in_flight.num_bytes for c in PriorityClass)
        charge = limits.queue_charge(client.ask)
        fits = held_bytes + charge.num_bytes <= limits.max_held_bytes and all(
            limits.queue_room(level).fits(total(stay[c] for c in PriorityClass if not c.outranks(level)), charge)
            for level in PriorityClass
            if not own.outranks(level)
        )
        assert not fits

    def _limits(self) -> GateLimits:
        return derive_limits(self.desk.settings, self.num_replicas)

    def _check_order(self, were_waiting: list[Client]) -> None:
        """Who goes before someone more urgent who is held has waited for its aging period."""
        held = [c for c in self.desk.clients if c.waits and self._has_share(c)]
        for client in were_waiting:
            if client.is_admitted and any(c.ask.priority.outranks(client.ask.priority) for c in held):
                period_s = AGING_S[client.ask.priority]
                assert period_s is not None
                assert self.desk.clock.now_s - self.arrived_s[client] >= period_s

    def _has_share(self, client: Client) -> bool:
        """It waits for room, and not for its tenant's share: that is all, or its tenant has nothing in flight."""
        return client.ask.is_alone or not any(
            c.is_admitted and not c.task.done() and c.ask.tenant == client.ask.tenant
            for c in self.desk.clients
            if c.ask.priority is client.ask.priority
        )

    def _check_ends(self) -> None:
        counted = dict.fromkeys(Ending, 0)
        for state in self.desk.gate.state().values():
            for ending, num in state.endings.items():
                counted[ending] += num
        assert sum(counted.values()) == len(self.desk.clients)
        errors = [client.error for client in self.desk.clients]
        assert counted[Ending.EXPIRED] == sum(isinstance(error, Expired) for error in errors)
        assert counted[Ending.NO_REPLICA] == sum(isinstance(error, ReplicaLost) for error in errors)
        shed = counted[Ending.NO_ROOM] + counted[Ending.DISPLACED] + counted[Ending.WAIT_TOO_LONG]
        assert shed == sum(isinstance(error, Shed) for error in errors)
        is_in = [client.is_admitted for client in self.desk.clients]
        gave_up = [client for client in self.desk.clients if isinstance(client.error, asyncio.CancelledError)]
        left_waiting = sum(not client.is_admitted for client in gave_up)  # or admitted in the moment of leaving
        assert counted[Ending.ADMITTED] >= sum(is_in)
        assert counted[Ending.ADMITTED] + counted[Ending.LEFT] == sum(is_in) + left_waiting


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([ROOMY, NARROW]), STEPS)
def test_gate_keeps_order_and_limits_and_ends_each_request_once(
    values: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    asyncio.run(Watched(values).run(steps))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([ROOMY, NARROW]), STEPS)
def test_gate_ends_every_waiter_once_when_it_is_closed_at_any_moment(
    values: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    async def run() -> None:
        watched = Watched(values)
        for step in steps:
            await watched._do(step)
        watched.desk.gate.close()
        await watched.desk.settle()
        assert not any(client.waits for client in watched.desk.clients)
        await watched.desk.end()

    asyncio.run(run())
