"""The gate of one ingress process: it holds what is in flight and what waits, and does what `admission.py` decides.

Every request ends here exactly once: admitted, refused, displaced, expired, or gone by itself; every permit comes back
exactly once, whatever ends its request. Runs on one event loop; holds no threshold.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from app.gate.admission import (
    Admit,
    ClassView,
    GateView,
    Queue,
    Refuse,
    choose_next,
    decide_admission,
    fits_in_flight,
    has_tenant_share,
    retry_after_s_of_last,
)
from app.gate.ask import Ask, Waiter
from app.gate.backlog import Backlog
from app.gate.ending import Ending, error_of
from app.gate.in_flight import InFlight
from app.gate.limits import derive_limits
from app.gate.load import Load
from app.gate.service_rate import ServiceRate
from app.gate.steady_clock import BEAT_S, SteadyClock
from slo.errors import ServingError
from slo.priority import PriorityClass
from slo.settings import Settings

logger = logging.getLogger("expresslane.gate")
_BY_URGENCY: Final = tuple(sorted(PriorityClass, key=lambda c: c.level))


@dataclass(frozen=True, slots=True)
class ClassAtGate:
    """One class at the gate now. `endings` are totals since the start."""

    in_flight: Load
    queued: Load
    num_queued: int
    tokens_per_s: float | None
    endings: Mapping[Ending, int]


class Gate:
    """Admits requests by class, and fairly among tenants."""

    def __init__(self, settings: Settings, num_replicas: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = SteadyClock(clock)
        self._limits = derive_limits(settings, num_replicas)
        self._backlog = Backlog()
        self._in_flight = InFlight()
        self._futures: dict[int, asyncio.Future[None]] = {}
        window_s = settings.admission.rate_window_s
        self._rates = {priority: ServiceRate(window_s, self._now_s()) for priority in PriorityClass}
        self._endings: dict[PriorityClass, Counter[Ending]] = {priority: Counter() for priority in PriorityClass}
        self._num_asked = 0
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def permit(self, ask: Ask) -> AsyncIterator[None]:
        """Waits until `ask` is admitted; it is in flight within the block.

        Raises:
            Shed: refused for load, or gave way to what is served before it.
            Expired: it waited for its class's time-out.
            ReplicaLost: no replica ran when its time-out was over, or this process shuts down.
        """
        number = await self._enter(ask)
        try:
            yield
        finally:
            self._release(number)

    def set_num_replicas(self, num_replicas: int) -> None:
        """So many replicas run now."""
        before = self._limits.num_replicas
        if num_replicas == before:
            return
        self._limits = derive_limits(self._settings, num_replicas)
        if before and num_replicas:
            self._rates = {c: rate.scaled(num_replicas / before) for c, rate in self._rates.items()}
        self.tick()

    def tick(self) -> None:
        """Ends what has expired, and admits what may go. The gate's own timer does it while anybody waits."""
        self._settle(self._now_s())

    def close(self) -> None:
        """This process shuts down: who waits is told, and nobody is admitted any more. What is in flight goes on."""
        self._is_closed = True
        for waiter in list(self._backlog):
            self._end(waiter, Ending.CLOSED)
        self.tick()

    def state(self) -> Mapping[PriorityClass, ClassAtGate]:
        """Each class now."""
        now_s = self._now_s()
        return {
            c: ClassAtGate(
                in_flight=self._in_flight.loads[c],
                queued=queue.load,
                num_queued=len(queue),
                tokens_per_s=self._rates[c].tokens_per_s(now_s),
                endings=dict(self._endings[c]),
            )
            for c, queue in self._backlog.queues.items()
        }

    async def _enter(self, ask: Ask) -> int:
        number, self._num_asked = self._num_asked, self._num_asked + 1
        if self._is_closed:
            raise self._refused(ask, Ending.CLOSED)
        now_s = self._now_s()
        self._settle(now_s)  # what has expired takes no room from a newcomer
        match decide_admission(self._view(ask, now_s), ask, self._settings.admission.max_retry_after_s, now_s):
            case Refuse(reason=reason, retry_after_s=retry_after_s):
                raise self._refused(ask, reason, retry_after_s)
            case Admit(displaced=displaced):
                self._displace(displaced, now_s)
                self._admit(number, ask)
                self._settle(now_s)
            case Queue(deadline_s=deadline_s, displaced=displaced):
                self._displace(displaced, now_s)
                charge = self._limits.classes[ask.priority].queue.clamp(ask.load)
                await self._wait(Waiter(number, ask, charge, now_s, deadline_s), now_s)
        return number

    async def _wait(self, waiter: Waiter, now_s: float) -> None:
        future = self._futures[waiter.number] = asyncio.get_running_loop().create_future()
        self._backlog.push(waiter)
        self._settle(now_s)
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._leave(waiter)
                self.tick()
            elif future.exception() is None:  # admitted in the very moment in which its client left
                self._release(waiter.number)
            raise

    def _settle(self, now_s: float) -> None:
        """Makes everything as it has to be at `now_s`; the last thing in each step."""
        for waiter in self._backlog.expired(now_s):
            self._end(waiter, Ending.EXPIRED if self._limits.num_replicas else Ending.NO_REPLICA)
        while (following := self._next(now_s)) is not None:
            self._let_in(following)
        self._measure(now_s)
        self._set_timer(now_s)

    def _let_in(self, waiter: Waiter) -> None:
        if self._futures[waiter.number].cancelled():
            self._leave(waiter)
            return
        self._backlog.serve(waiter)
        self._futures.pop(waiter.number).set_result(None)
        self._admit(waiter.number, waiter.ask)

    def _next(self, now_s: float) -> Waiter | None:
        if not self._futures:
            return None
        return choose_next(
            {c: queue.head(self._is_eligible) for c, queue in self._backlog.queues.items()},
            lambda waiter: fits_in_flight(self._view(waiter.ask, now_s), waiter.ask),
            self._settings.scheduler.fairness.aging_s,
            now_s,
        )

    def _admit(self, number: int, ask: Ask) -> None:
        self._in_flight.add(number, ask, self._limits.classes[ask.priority].in_flight.clamp(ask.load))
        self._endings[ask.priority][Ending.ADMITTED] += 1

    def _release(self, number: int) -> None:
        ask, charge = self._in_flight.remove(number)
        self._rates[ask.priority] = self._rates[ask.priority].ended(charge.tokens)
        self.tick()

    def _displace(self, waiters: tuple[Waiter, ...], now_s: float) -> None:
        most_s = self._settings.admission.max_retry_after_s
        for waiter in waiters:
            priority = waiter.ask.priority
            self._end(waiter, Ending.DISPLACED, retry_after_s_of_last(self._view(waiter.ask, now_s), priority, most_s))

    def _end(self, waiter: Waiter, ending: Ending, retry_after_s: int = 0) -> None:
        """`waiter` leaves without a permit, and is told why. One whose client has just left is not told."""
        if self._futures[waiter.number].cancelled():
            self._leave(waiter)
            return
        self._backlog.remove(waiter)
        self._futures.pop(waiter.number).set_exception(self._refused(waiter.ask, ending, retry_after_s))

    def _leave(self, waiter: Waiter) -> None:
        """Its client has left. Whoever notices first does it."""
        if self._futures.pop(waiter.number, None) is not None:
            self._backlog.remove(waiter)
            self._endings[waiter.ask.priority][Ending.LEFT] += 1

    def _refused(self, ask: Ask, ending: Ending, retry_after_s: int = 0) -> ServingError:
        """Counts and logs it; gives the error for its client."""
        self._endings[ask.priority][ending] += 1
        logger.info(
            "request_id=%s class=%s tenant=%r reason=%s", ask.request_id, ask.priority.name, ask.tenant, ending.value
        )
        return error_of(ending, ask, self._limits.classes[ask.priority].queue_timeout_s, retry_after_s)

    def _is_eligible(self, waiter: Waiter) -> bool:
        ask = waiter.ask
        return has_tenant_share(self._limits, ask, self._in_flight.of_tenant(ask.priority, ask.tenant))

    def _view(self, ask: Ask, now_s: float) -> GateView:
        queues = self._backlog.queues
        classes = {
            c: ClassView(
                in_flight=self._in_flight.loads[c],
                queued=queue.load,
                is_held=queue.head(self._is_eligible) is not None,
                tokens_per_s=self._rates[c].tokens_per_s(now_s),
            )
            for c, queue in queues.items()
        }
        return GateView(
            limits=self._limits,
            classes=classes,
            of_tenant=self._in_flight.of_tenant(ask.priority, ask.tenant),
            tokens_ahead=queues[ask.priority].tokens_ahead(ask.tenant),
            behind=self._backlog.behind(ask.priority, ask.tenant),
        )

    def _measure(self, now_s: float) -> None:
        is_first = True
        for c in _BY_URGENCY:
            queue = self._backlog.queues[c]
            self._rates[c] = self._rates[c].at(now_s, is_first and len(queue) > 0)
            is_first = is_first and queue.head(self._is_eligible) is None

    def _set_timer(self, now_s: float) -> None:
        deadline_s = self._backlog.next_deadline_s()
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
        return self._clock.read(is_watched=len(self._backlog) > 0)

    def check_invariants(self) -> None:
        """For tests, after each step: the sums hold, each waiter has who waits for it, and nobody who may go waits."""
        self._backlog.check_invariants()
        self._in_flight.check_invariants()
        assert {waiter.number for waiter in self._backlog} == set(self._futures)
        assert (self._timer is None) == (len(self._backlog) == 0), "the timer runs while anybody waits, and only then"
        now_s = self._now_s()
        waiter = self._next(now_s)
        assert waiter is None or self._futures[waiter.number].cancelled(), f"{waiter} could go"
        ended = sum(sum(endings.values()) for endings in self._endings.values())
        assert ended + len(self._backlog) == self._num_asked
        assert len(self._in_flight) <= sum(endings[Ending.ADMITTED] for endings in self._endings.values())
