"""Waiters for tests of the queues."""

from __future__ import annotations

from itertools import count

from app.gate.ask import Ask, Waiter
from app.gate.load import Load
from slo.priority import PriorityClass

_numbers = count()


def waiter(
    tenant: str = "a",
    tokens: int = 100,
    *,
    weight: float = 1.0,
    priority: PriorityClass = PriorityClass.P1,
    arrived_s: float = 0.0,
    deadline_s: float = 30.0,
    is_alone: bool = False,
) -> Waiter:
    load = Load(1, tokens, 10)
    number = next(_numbers)
    return Waiter(number, Ask(f"r{number}", priority, tenant, weight, load, is_alone), load, arrived_s, deadline_s)
