"""A request as the gate sees it, before and while it waits. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from app.gate.load import Load
from slo.priority import PriorityClass


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        weight: its tenant's, for shares within a class.
        load: what it asks for, by estimate.
        is_alone: its tenant is the only one there is, and need not leave run slots to others.
    """

    request_id: str
    priority: PriorityClass
    tenant: str
    weight: float
    load: Load
    is_alone: bool = True


@dataclass(frozen=True, slots=True)
class Waiter:
    """One that waits. Times are of the gate's clock, seconds.

    Attributes:
        number: counts arrivals; no two are the same.
        charge: what it takes of the queue's room.
    """

    number: int
    ask: Ask
    charge: Load
    arrived_s: float
    deadline_s: float
