"""What has been handed to the engines and has not ended, by class and tenant. Bookkeeping: no limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from app.gate.ask import Ask
from app.gate.load import Load, total
from slo.priority import PriorityClass


class InFlight:
    """The requests in flight. Changed by the gate only."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Ask, Load]] = {}
        self._loads: dict[PriorityClass, Load] = dict.fromkeys(PriorityClass, Load())
        self._of_tenants: Counter[tuple[PriorityClass, str]] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def loads(self) -> Mapping[PriorityClass, Load]:
        """What each class holds."""
        return self._loads

    def of_tenant(self, priority: PriorityClass, tenant: str) -> int:
        """Sequences of `tenant` in `priority`."""
        return self._of_tenants[priority, tenant]

    def add(self, number: int, ask: Ask, charge: Load) -> None:
        """Request `number` is in flight, and charged `charge`."""
        assert number not in self._held, f"{ask.request_id} was admitted twice"
        self._held[number] = (ask, charge)
        self._loads[ask.priority] += charge
        self._of_tenants[ask.priority, ask.tenant] += charge.sequences

    def remove(self, number: int) -> tuple[Ask, Load]:
        """Request `number` has ended, and what it was charged is free."""
        ask, charge = self._held.pop(number)
        self._loads[ask.priority] -= charge
        key = (ask.priority, ask.tenant)
        self._of_tenants[key] -= charge.sequences
        if not self._of_tenants[key]:
            del self._of_tenants[key]
        return ask, charge

    def check_invariants(self) -> None:
        """For tests: the sums are those of the requests, and no tenant is remembered that holds nothing."""
        for priority, load in self._loads.items():
            assert load == total(charge for ask, charge in self._held.values() if ask.priority is priority)
        sums: Counter[tuple[PriorityClass, str]] = Counter()
        for ask, charge in self._held.values():
            sums[ask.priority, ask.tenant] += charge.sequences
        assert dict(sums) == dict(self._of_tenants)
