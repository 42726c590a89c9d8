"""The gate of one ingress process: requests wait in it, on its event loop, until the book says what becomes of them.

Every request ends here exactly once: admitted, refused, displaced, expired, or gone by itself; every permit comes back
exactly once, whatever ends its request. What is decided, and what is held, is the book's; this is who waits for it, the
clock, and the timer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from app.gate.admission import Refuse
from app.gate.ask import Ask, Waiter
from app.gate.book import Admitted, ClassAtGate, GateBook
from app.gate.ending import Ending, error_of
from app.gate.steady_clock import BEAT_S, SteadyClock
from slo.errors import ServingError
from slo.messages import Standing
from slo.priority import PriorityClass
from slo.settings import Settings

__all__ = ["ClassAtGate", "Gate"]

logger = logging.getLogger("expresslane.gate")


class Gate:
    """Admits requests by class, and fairly among tenants."""

    def __init__(self, settings: Settings, num_replicas: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = SteadyClock(clock)
        self._futures: dict[int, asyncio.Future[Standing]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._book = GateBook(settings, num_replicas, self, self._clock.read(is_watched=False))

    @asynccontextmanager
    async def permit(self, ask: Ask) -> AsyncIterator[Standing]:
        """Waits until `ask` is admitted; it is in flight within the block.

        Raises:
            Shed: refused for load, or gave way to what is served before it.
            Expired: it waited for its class's time-out.
            ReplicaLost: no replica ran when its time-out was over, or this process shuts down.
        """
        admitted = await self._enter(ask)
        try:
            yield admitted.standing
        finally:
            self._release(admitted.number)

    @property
    def num_replicas(self) -> int:
        """That run, as far as is known."""
        return self._book.num_replicas

    def set_num_replicas(self, num_replicas: int) -> None:
        """So many replicas run now."""
        if self._book.set_num_replicas(num_replicas):
            self.tick()

    def tick(self) -> None:
        """Ends what has expired, and admits what may go. The gate's own timer does it while anybody waits."""
        self._settle(self._now_s())

    def close(self) -> None:
        """This process shuts down: who waits is told, and nobody is admitted any more. What is in flight goes on."""
        self._book.close()
        self.tick()

    def state(self) -> Mapping[PriorityClass, ClassAtGate]:
        """Each class now."""
        return self._book.state(self._now_s())

    def has_left(self, waiter: Waiter) -> bool:
        """See `Waiters`. The book may notice before the request's own task runs again."""
        return self._futures[waiter.number].cancelled()

    def let_in(self, waiter: Waiter, standing: Standing) -> None:
        """See `Waiters`."""
        self._futures.pop(waiter.number).set_result(standing)

    def turn_away(self, waiter: Waiter, ending: Ending, retry_after_s: int) -> None:
        """See `Waiters`."""
        future = self._futures.pop(waiter.number)
        if ending is not Ending.LEFT:
            future.set_exception(self._refused(waiter.ask, ending, retry_after_s))

    async def _enter(self, ask: Ask) -> Admitted:
        now_s = self._now_s()
        self._settle(now_s)
        match self._book.enter(ask, now_s):
            case Refuse(reason=ending, retry_after_s=retry_after_s):
                self._settle(now_s)
                raise self._refused(ask, ending, retry_after_s)
            case Admitted() as admitted:
                self._settle(now_s)
                return admitted
            case Waiter() as waiter:
                return Admitted(waiter.number, await self._wait(waiter, now_s))

    async def _wait(self, waiter: Waiter, now_s: float) -> Standing:
        future: asyncio.Future[Standing] = asyncio.get_running_loop().create_future()
        self._futures[waiter.number] = future
        self._settle(now_s)
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                if waiter.number in self._futures:
                    self._book.leave(waiter)
                self.tick()
            elif future.exception() is None:  # admitted in the very moment in which its client left
                self._release(waiter.number)
            raise

    def _settle(self, now_s: float) -> None:
        """The last thing in each step."""
        self._book.settle(now_s)
        self._set_timer(now_s)

    def _release(self, number: int) -> None:
        self._book.release(number)
        self.tick()

    def _refused(self, ask: Ask, ending: Ending, retry_after_s: int) -> ServingError:
        """Logs it; gives the error for its client."""
        logger.info(
            "request_id=%s class=%s tenant=%r reason=%s", ask.request_id, ask.priority.name, ask.tenant, ending.value
        )
        return error_of(ending, ask, self._book.limits_of(ask.priority).queue_timeout_s, retry_after_s)

    def _set_timer(self, now_s: float) -> None:
        deadline_s = self._book.next_deadline_s
        if deadline_s is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        loop = asyncio.get_running_loop()
        delay_s = min(BEAT_S, deadline_s - now_s)
        if self._timer is None or self._timer.when() > loop.time() + delay_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.tick()

    def _now_s(self) -> float:
        return self._clock.read(is_watched=len(self._book) > 0)

    def check_invariants(self) -> None:
        """For tests, after each step: the book holds together, each waiter has who waits for it, and the timer runs."""
        self._book.check_invariants(set(self._futures), self._now_s())
        assert (self._timer is None) == (len(self._book) == 0), "the timer runs while anybody waits, and only then"
