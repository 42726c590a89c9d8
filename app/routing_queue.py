"""The order of requests that wait in the router for a replica: by class, then by age."""

from __future__ import annotations

from bisect import bisect_left, insort_right
from collections import deque
from typing import Any

from slo.messages import GenerateCall
from slo.priority import PriorityClass


def call_of(pending: Any) -> GenerateCall | None:
    """What `pending` (Serve's `PendingRequest`) asks a replica to generate; None where it asks something else."""
    call = pending.args[0] if pending.args else None
    return call if isinstance(call, GenerateCall) else None


def order_of(pending: Any) -> tuple[int, float]:
    """The sort key. A call that is no generation is a short question, of a probe or an operator: it does not wait."""
    call = call_of(pending)
    return (PriorityClass.P0 if call is None else call.counts_as).level, pending.created_at


class ClassQueue(deque[Any]):
    """Serve's queue of pending requests, in the order of classes; within a class as Serve has it."""

    def append(self, pending: Any) -> None:
        """Puts `pending` where it belongs."""
        insort_right(self, pending, key=order_of)

    def num_urgent(self) -> int:
        """Those before the first P2."""
        return bisect_left(self, PriorityClass.P2.level, key=lambda pending: order_of(pending)[0])
