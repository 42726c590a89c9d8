"""What has been handed to the engines and has not ended, by class and tenant. Bookkeeping: no limits.

A class's *surplus* is apart from the rest: the requests that tenants have beyond their shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.gate.ask import Ask
from app.gate.load import Load, total
from slo.priority import PriorityClass


@dataclass(frozen=True, slots=True)
class Held:
    """One request in flight, and what it is charged."""

    ask: Ask
    charge: Load
    is_surplus: bool = False


class InFlight:
    """The requests in flight. Changed by the gate only."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._within: dict[PriorityClass, Load] = dict.fromkeys(PriorityClass, Load())
        self._surplus: dict[PriorityClass, Load] = dict.fromkeys(PriorityClass, Load())
        self._of_tenants: Counter[tuple[PriorityClass, str]] = Counter()
        self._num_of_tenants: Counter[tuple[PriorityClass, str]] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def asks(self) -> Iterator[Ask]:
        """All that are in flight."""
        return (held.ask for held in self._held.values())

    @property
    def within(self) -> Mapping[PriorityClass, Load]:
        """What each class holds within its tenants' shares."""
        return self._within

    @property
    def surplus(self) -> Mapping[PriorityClass, Load]:
        """What each class holds beyond them."""
        return self._surplus

    def of_tenant(self, priority: PriorityClass, tenant: str) -> int:
        """Sequences of `tenant` in `priority`, within its share."""
        return self._of_tenants[priority, tenant]

    def has_any(self, priority: PriorityClass, tenant: str) -> bool:
        """Whether `tenant` has a request in `priority`, be it surplus."""
        return self._num_of_tenants[priority, tenant] > 0

    def add(self, number: int, held: Held) -> None:
        """Request `number` is in flight."""
        assert number not in self._held, f"{held.ask.request_id} was admitted twice"
        self._held[number] = held
        self._loads_of(held)[held.ask.priority] += held.charge
        self._num_of_tenants[held.ask.priority, held.ask.tenant] += 1
        if not held.is_surplus:
            self._of_tenants[held.ask.priority, held.ask.tenant] += held.charge.sequences

    def remove(self, number: int) -> Held:
        """Request `number` has ended, and what it was charged is free."""
        held = self._held.pop(number)
        self._loads_of(held)[held.ask.priority] -= held.charge
        key = (held.ask.priority, held.ask.tenant)
        if not held.is_surplus:
            self._of_tenants[key] -= held.charge.sequences
        self._num_of_tenants[key] -= 1
        for counter in (self._of_tenants, self._num_of_tenants):
            if not counter[key]:
                del counter[key]
        return held

    def _loads_of(self, held: Held) -> dict[PriorityClass, Load]:
        return self._surplus if held.is_surplus else self._within

    def check_invariants(self) -> None:
        """For tests: the sums are those of the requests, and no tenant is remembered that holds nothing."""
        for is_surplus, loads in ((False, self._within), (True, self._surplus)):
            for priority, load in loads.items():
                of_class = [h for h in self._held.values() if h.ask.priority is priority]
                assert load == total(h.charge for h in of_class if h.is_surplus is is_surplus)
        sums: Counter[tuple[PriorityClass, str]] = Counter()
        for held in self._held.values():
            if not held.is_surplus:
                sums[held.ask.priority, held.ask.tenant] += held.charge.sequences
        assert dict(sums) == dict(self._of_tenants)
        nums = Counter((held.ask.priority, held.ask.tenant) for held in self._held.values())
        assert dict(nums) == dict(self._num_of_tenants)
