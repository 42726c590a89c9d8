"""Which tenants ask for which class: those that have a request here, or have asked within a minute. Bookkeeping."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from app.gate.ask import Ask
from slo.priority import PriorityClass

REMEMBERED_S: Final = 60.0
"""For so long after it has asked last a tenant keeps its share, seconds: one that asks now and then finds it free."""
_LOOK_S: Final = 1.0


@dataclass(slots=True)
class _Asker:
    weight: float
    asked_s: float
    num_here: int = 0


class Askers:
    """The tenants that ask. Changed by the gate's book only; times are of its clock, seconds."""

    def __init__(self) -> None:
        self._of: dict[PriorityClass, dict[str, _Asker]] = {priority: {} for priority in PriorityClass}
        self._weights: dict[PriorityClass, float] = dict.fromkeys(PriorityClass, 0.0)
        self._next_look_s = 0.0

    def part(self, priority: PriorityClass, tenant: str) -> float:
        """The weight of `tenant`, which asks for `priority`, as a part of those of all that do; 1: it alone does."""
        return self._of[priority][tenant].weight / self._weights[priority]

    def come(self, priority: PriorityClass, tenant: str, weight: float, now_s: float) -> None:
        """A request of `tenant` is here. Its weight is that of its latest request."""
        askers = self._of[priority]
        asker = askers.get(tenant)
        if asker is None:
            asker = askers[tenant] = _Asker(0.0, now_s)
        asker.asked_s = now_s
        asker.num_here += 1
        if asker.weight != weight:
            asker.weight = weight
            self._weigh(priority)

    def go(self, priority: PriorityClass, tenant: str) -> None:
        """A request of `tenant` is here no more, whatever became of it."""
        self._of[priority][tenant].num_here -= 1

    def forget(self, now_s: float) -> None:
        """Those that have not asked for long, and have nothing here. Looks once a second at most."""
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_S
        for priority, askers in self._of.items():
            gone = [t for t, a in askers.items() if not a.num_here and now_s - a.asked_s >= REMEMBERED_S]
            for tenant in gone:
                del askers[tenant]
            if gone:
                self._weigh(priority)

    def check_invariants(self, *asks: Ask) -> None:
        """For tests: `asks` are all that are here, and the weights are those of the tenants remembered."""
        here = Counter((ask.priority, ask.tenant) for ask in asks)
        known = {(c, tenant): asker for c, askers in self._of.items() for tenant, asker in askers.items()}
        assert here == Counter({key: asker.num_here for key, asker in known.items() if asker.num_here})
        for c in PriorityClass:
            assert self._weights[c] == sum(asker.weight for (of, _), asker in known.items() if of is c)

    def _weigh(self, priority: PriorityClass) -> None:
        self._weights[priority] = sum(asker.weight for asker in self._of[priority].values())
