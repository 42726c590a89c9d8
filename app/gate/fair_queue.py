"""Who of one class is served next: fair among tenants by the tokens they ask for, in order within each.

Start-time fair queueing (Goyal, Vin, Cheng 1996). Each tenant's requests lie end to end on a virtual time, each as long
as its tokens divided by the tenant's weight; the earliest start is served next, and virtual time moves there. A tenant
that comes anew starts at the present virtual time, so that it waits for what others have begun, not for what they have
piled up, and gains nothing by having been away.

A start is worked out for the head of each tenant only: what leaves the queue unserved is charged to nobody. Pure
bookkeeping: no clock, no limits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from app.gate.ask import Waiter
from app.gate.load import Load, total


@dataclass(slots=True)
class _Flow:
    """What one tenant has waiting, and where its last served request ended on the virtual time."""

    weight: float
    finish: float = 0.0
    tokens: int = 0
    waiting: dict[int, tuple[Waiter, float]] = field(default_factory=dict)  # with the virtual time of its arrival

    @property
    def head(self) -> Waiter:
        return next(iter(self.waiting.values()))[0]

    @property
    def start(self) -> float:
        """Of the head."""
        return max(self.finish, next(iter(self.waiting.values()))[1])

    def last_first(self) -> Iterator[tuple[float, Waiter]]:
        """The waiters with their starts."""
        start, before = self.start, self.tokens
        for waiter, _ in reversed(self.waiting.values()):
            before -= waiter.charge.tokens
            yield start + before / self.weight, waiter


class FairQueue:
    """The waiters of one class."""

    def __init__(self) -> None:
        self._virtual = 0.0
        self._flows: dict[str, _Flow] = {}
        self.load = Load()

    def __len__(self) -> int:
        return sum(len(flow.waiting) for flow in self._flows.values())

    def push(self, waiter: Waiter) -> None:
        """`waiter` is the last of its tenant. A tenant's weight is that of its latest request."""
        flow = self._flows.setdefault(waiter.ask.tenant, _Flow(waiter.ask.weight))
        flow.weight = waiter.ask.weight
        flow.waiting[waiter.number] = (waiter, self._virtual)
        flow.tokens += waiter.charge.tokens
        self.load += waiter.charge

    def has(self, tenant: str) -> bool:
        """Whether one of `tenant` waits."""
        flow = self._flows.get(tenant)
        return flow is not None and bool(flow.waiting)

    def heads(self, has_turn: Callable[[Waiter], bool]) -> tuple[Waiter | None, Waiter | None]:
        """Who is served next of the tenants' first ones: of those that have a turn, and of the others; None where there
        is none."""
        first: dict[bool, tuple[float, int, Waiter]] = {}
        for flow in self._flows.values():
            if flow.waiting:
                entry, in_order = (flow.start, flow.head.number, flow.head), has_turn(flow.head)
                first[in_order] = min(first.get(in_order, entry), entry)
        turn, other = first.get(True), first.get(False)
        return turn and turn[2], other and other[2]

    def serve(self, waiter: Waiter) -> None:
        """`waiter`, the head of its tenant, leaves the queue to be served: it is charged to its tenant."""
        flow = self._flows[waiter.ask.tenant]
        assert flow.head is waiter, f"{waiter} is not the first of its tenant"
        self._virtual = max(self._virtual, flow.start)
        flow.finish = flow.start + waiter.charge.tokens / flow.weight
        self._take(flow, waiter)

    def remove(self, waiter: Waiter) -> None:
        """`waiter` leaves the queue unserved."""
        self._take(self._flows[waiter.ask.tenant], waiter)

    def start_of(self, tenant: str) -> float:
        """The virtual start that a new request of `tenant` would have."""
        flow = self._flows.get(tenant)
        if flow is None:
            return self._virtual
        if not flow.waiting:
            return max(flow.finish, self._virtual)
        return flow.start + flow.tokens / flow.weight

    def tokens_ahead(self, tenant: str) -> int:
        """Tokens served before a new request of `tenant`: its own, and others' that start no later (to one request)."""
        start = self.start_of(tenant)
        ahead = 0.0
        for name, flow in self._flows.items():
            if name == tenant:
                ahead += flow.tokens
            elif flow.waiting and flow.start <= start:
                ahead += min(flow.tokens, (start - flow.start) * flow.weight + flow.head.charge.tokens)
        return round(ahead)

    def last_first(self, after: float = float("-inf")) -> Iterator[Waiter]:
        """Those who start later than `after` on the virtual time, the last to be served first. Not to be mixed with
        changes of the queue."""
        flows = [flow.last_first() for flow in self._flows.values() if flow.waiting]
        for start, waiter in heapq.merge(*flows, key=_later_first):
            if start <= after:
                return
            yield waiter

    def _take(self, flow: _Flow, waiter: Waiter) -> None:
        del flow.waiting[waiter.number]
        flow.tokens -= waiter.charge.tokens
        self.load -= waiter.charge
        if not any(other.waiting for other in self._flows.values()):  # nobody competes: what was served is forgotten
            self._flows, self._virtual = {}, 0.0
        self._flows = {n: f for n, f in self._flows.items() if f.waiting or f.finish > self._virtual}

    def check_invariants(self) -> None:
        """For tests: the sums are those of the waiters, and tenants are forgotten when they mean nothing any more."""
        waiters = [waiter for flow in self._flows.values() for waiter, _ in flow.waiting.values()]
        assert self.load == total(waiter.charge for waiter in waiters)
        assert len(self) == len(waiters) == len({waiter.number for waiter in waiters})
        for name, flow in self._flows.items():
            assert flow.tokens == sum(waiter.charge.tokens for waiter, _ in flow.waiting.values())
            assert all(waiter.ask.tenant == name for waiter, _ in flow.waiting.values())
            assert flow.waiting or (waiters and flow.finish > self._virtual), f"{name} is remembered for nothing"


def _later_first(entry: tuple[float, Waiter]) -> tuple[float, int]:
    start, waiter = entry
    return (-start, -waiter.number)
