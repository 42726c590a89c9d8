"""What a class asks of the fleet, in the two measures that together tell a load. Pure.

The engines serve more urgent classes first and less urgent ones with what is left, so a class's demand is that of its
own requests and of more urgent ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from autoscale.view import ClassView
from slo.priority import PriorityClass


@dataclass(frozen=True, slots=True)
class Demand:
    """Of the whole fleet, over the window.

    Requests in flight are what the length of a step follows, and weigh a long answer for what it costs; but a backlog
    counts in full, and fewer replicas have more in flight than in proportion, since each answer takes longer. Rates are
    not moved by how the fleet fares; but they know nothing of how long answers are.
    """

    in_flight: float
    arrivals_per_s: float
    completions_per_s: float

    @property
    def served_per_s(self) -> float:
        """What arrives and is coped with: of an overload the completions, of answers that have yet to end, too."""
        return min(self.arrivals_per_s, self.completions_per_s)

    @property
    def is_receding(self) -> bool:
        """More ended than came."""
        return self.completions_per_s > self.arrivals_per_s

    def recedes_to_in_s(self, in_flight: float) -> float:
        """When so few will be in flight, if all goes on as in the window; `inf`: never."""
        if self.in_flight <= in_flight:
            return 0.0
        if not self.is_receding:
            return inf
        return (self.in_flight - in_flight) / (self.completions_per_s - self.arrivals_per_s)


def demand_of(priority: PriorityClass, classes: Mapping[PriorityClass, ClassView]) -> Demand:
    """The demand of `priority` and of more urgent classes."""
    views = [view for p, view in classes.items() if not priority.outranks(p)]
    return Demand(
        float(sum(view.num_unfinished for view in views)),
        sum(view.arrivals_per_s for view in views),
        sum(view.completions_per_s for view in views),
    )
