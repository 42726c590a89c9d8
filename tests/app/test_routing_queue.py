"""Mutations tried by hand, each found by a test here: age before class; a question behind generations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.routing_queue import ClassQueue, call_of, order_of
from slo.messages import Endpoint, GenerateCall, Standing
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass


@dataclass(frozen=True)
class Pending:
    """As much of Serve's `PendingRequest` as the order needs."""

    args: tuple[Any, ...]
    created_at: float


def pending(priority: PriorityClass | None, created_at: float) -> Pending:
    """None: a question, and no generation."""
    args = () if priority is None else (GenerateCall(Endpoint.CHAT, {}, priority, "id"),)
    return Pending(args, created_at)


def test_queue_is_in_the_order_of_class_then_age() -> None:
    queue = ClassQueue()
    for item in (old := pending(P2, 1), young := pending(P0, 5), mid := pending(P0, 4), question := pending(None, 4.5)):
        queue.append(item)
    assert list(queue) == [mid, question, young, old]
    assert queue.popleft() is mid


def test_queue_has_surplus_among_the_class_that_it_counts_as() -> None:
    queue = ClassQueue()
    surplus = Pending((GenerateCall(Endpoint.CHAT, {}, P1, "id", standing=Standing(is_surplus=True)),), 2)
    for item in (batch := pending(P2, 1), surplus, young := pending(P1, 9)):
        queue.append(item)
    assert list(queue) == [young, batch, surplus]
    assert queue.num_urgent() == 1


def test_queue_counts_those_that_are_more_urgent_than_batch_work() -> None:
    queue = ClassQueue()
    assert queue.num_urgent() == 0
    for number, priority in enumerate((P2, P0, P1, P2, None)):
        queue.append(pending(priority, number))
    assert queue.num_urgent() == 3


def test_call_is_none_of_another_method() -> None:
    assert call_of(Pending((), 1)) is None
    assert call_of(Pending(("tiny",), 1)) is None
    assert call_of(pending(P1, 1)) == GenerateCall(Endpoint.CHAT, {}, P1, "id")


@given(st.lists(st.tuples(st.sampled_from([None, P0, P1, P2]), st.integers(0, 9))))
def test_queue_is_sorted_and_stable_whatever_comes(items: list[tuple[PriorityClass | None, int]]) -> None:
    queue, came = ClassQueue(), [pending(priority, at) for priority, at in items]
    for item in came:
        queue.append(item)
    assert [id(item) for item in queue] == [id(item) for item in sorted(came, key=order_of)]
