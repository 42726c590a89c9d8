"""All that waits at the gate: a fair queue for each class, and their order. Bookkeeping: no clock, no limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.gate.ask import Waiter
from app.gate.fair_queue import FairQueue
from slo.priority import PriorityClass


class Backlog:
    """The waiters of all classes. Changed by the gate only."""

    def __init__(self) -> None:
        self.queues: Mapping[PriorityClass, FairQueue] = {priority: FairQueue() for priority in PriorityClass}
        self._by_arrival: Mapping[PriorityClass, dict[int, Waiter]] = {priority: {} for priority in PriorityClass}

    def __len__(self) -> int:
        return sum(len(waiters) for waiters in self._by_arrival.values())

    def __iter__(self) -> Iterator[Waiter]:
        for waiters in self._by_arrival.values():
            yield from waiters.values()

    def push(self, waiter: Waiter) -> None:
        """`waiter` joins its class."""
        self.queues[waiter.ask.priority].push(waiter)
        self._by_arrival[waiter.ask.priority][waiter.number] = waiter

    def serve(self, waiter: Waiter) -> None:
        """`waiter`, the first of its tenant in its class, leaves to be served."""
        self.queues[waiter.ask.priority].serve(waiter)
        del self._by_arrival[waiter.ask.priority][waiter.number]

    def remove(self, waiter: Waiter) -> None:
        """`waiter` leaves unserved."""
        self.queues[waiter.ask.priority].remove(waiter)
        del self._by_arrival[waiter.ask.priority][waiter.number]

    def expired(self, now_s: float) -> list[Waiter]:
        """Those whose deadline has come. In each class the earlier arrival has the earlier deadline."""
        due = []
        for waiters in self._by_arrival.values():
            for waiter in waiters.values():
                if waiter.deadline_s > now_s:
                    break
                due.append(waiter)
        return due

    def next_deadline_s(self) -> float | None:
        """The earliest; None when nobody waits."""
        firsts = (next(iter(waiters.values())) for waiters in self._by_arrival.values() if waiters)
        return min((waiter.deadline_s for waiter in firsts), default=None)

    def behind(self, priority: PriorityClass, tenant: str) -> Iterator[Waiter]:
        """Those who would be served after a new request of `tenant`, the last to be served first."""
        for other in sorted(PriorityClass, key=lambda c: -c.level):
            if priority.outranks(other):
                yield from self.queues[other].last_first()
        queue = self.queues[priority]
        yield from queue.last_first(after=queue.start_of(tenant))

    def check_invariants(self) -> None:
        """For tests: both orders hold the same waiters, each in its own class."""
        for priority, queue in self.queues.items():
            queue.check_invariants()
            by_arrival = self._by_arrival[priority]
            assert set(by_arrival.values()) == set(queue.last_first())
            assert all(waiter.ask.priority is priority for waiter in by_arrival.values())
            assert [w.deadline_s for w in by_arrival.values()] == sorted(w.deadline_s for w in by_arrival.values())
