"""A gate on a clock that a test moves, and clients that ask it and hold what they get until the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from app.gate.ask import Ask
from app.gate.ending import Ending
from app.gate.gate import ClassAtGate, Gate
from app.gate.load import Load
from slo.errors import ServingError
from slo.messages import Standing
from slo.priority import PriorityClass
from slo.settings import parse_settings

P0, P1, P2 = PriorityClass

SMALL: dict[str, Any] = {
    "engine": {"max_num_seqs": 4},
    "admission": {
        "ahead_ratio": 0,
        "p0": {"queue_timeout_s": 2, "max_queued": 3},
        "p1": {"queue_timeout_s": 30, "max_queued": 4},
        "p2": {"queue_timeout_s": 300, "max_queued": 5},
    },
}
"""Four in flight of each class; three, four and five in the queues."""


class FakeClock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Client:
    """One request: asks the gate at once, and holds its permit until `finish`."""

    def __init__(self, gate: Gate, ask: Ask) -> None:
        self.ask = ask
        self.is_admitted = False
        self.standing = Standing()
        self.error: BaseException | None = None
        self.num_ends = 0
        self._gate = gate
        self._finished = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    @property
    def counts_as(self) -> PriorityClass:
        """For the engines, once it is admitted."""
        return self.standing.counts_as(self.ask.priority)

    @property
    def waits(self) -> bool:
        """Neither admitted nor refused."""
        return not self.is_admitted and self.error is None

    def finish(self) -> None:
        """Its answer is complete."""
        self._finished.set()

    def leave(self) -> None:
        """Its client closes the connection: Serve cancels the request."""
        self.task.cancel()

    async def _run(self) -> None:
        try:
            async with self._gate.permit(self.ask) as self.standing:
                self.is_admitted = True
                await self._finished.wait()
        except (ServingError, asyncio.CancelledError) as error:
            self.error = error
        finally:
            self.num_ends += 1


class Desk:
    """A gate and its clients. Each step ends with the gate's invariants checked."""

    def __init__(self, values: Mapping[str, Any] = SMALL, num_replicas: int = 1) -> None:
        self.clock = FakeClock()
        self.settings = parse_settings(values)
        self.gate = Gate(self.settings, num_replicas, self.clock)
        self.clients: list[Client] = []

    async def ask(
        self,
        priority: PriorityClass,
        tenant: str = "a",
        *,
        sequences: int = 1,
        tokens: int = 100,
        num_bytes: int = 10,
        weight: float = 1.0,
        is_alone: bool = True,
    ) -> Client:
        load = Load(sequences, tokens, num_bytes)
        client = Client(self.gate, Ask(f"r{len(self.clients)}", priority, tenant, weight, load, is_alone))
        self.clients.append(client)
        await self.settle()
        return client

    async def ask_many(self, num: int, priority: PriorityClass, tenant: str = "a", **options: Any) -> list[Client]:
        return [await self.ask(priority, tenant, **options) for _ in range(num)]

    async def finish(self, *clients: Client) -> None:
        for client in clients:
            client.finish()
        await self.settle()

    async def leave(self, *clients: Client) -> None:
        for client in clients:
            client.leave()
        await self.settle()

    async def pass_time(self, seconds: float) -> None:
        """In steps of a second, as the gate's timer does it."""
        while seconds > 0:
            self.clock.now_s += min(1.0, seconds)
            seconds -= 1.0
            self.gate.tick()
            await self.settle()

    async def settle(self) -> None:
        for _ in range(4):  # a permit given back admits the next one, whose task then runs
            await asyncio.sleep(0)
        self.gate.check_invariants()

    def state(self, priority: PriorityClass) -> ClassAtGate:
        return self.gate.state()[priority]

    def endings(self, priority: PriorityClass) -> dict[Ending, int]:
        return dict(self.state(priority).endings)

    async def end(self) -> None:
        """Every client leaves; then the gate is as it was in the beginning, and each request has ended once."""
        await self.leave(*(client for client in self.clients if not client.task.done()))
        for state in self.gate.state().values():
            assert state.in_flight == state.surplus == state.queued == Load()
            assert state.num_queued == 0
        assert all(client.num_ends == 1 for client in self.clients)
