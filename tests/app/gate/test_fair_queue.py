"""Mutations that these tests see: serve in order of arrival; ignore weights; let a tenant that comes anew start at 0;
charge what leaves unserved; never forget a tenant; count nobody else as ahead; `last_first` in order of arrival."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.gate.ask import Waiter
from app.gate.fair_queue import FairQueue
from tests.app.gate.waiters import waiter


def anyone(_: Waiter) -> bool:
    return True


def push(queue: FairQueue, *waiters: Waiter) -> None:
    for one in waiters:
        queue.push(one)
        queue.check_invariants()


def serve(queue: FairQueue, num: int | None = None) -> list[Waiter]:
    """Those served, in order."""
    served: list[Waiter] = []
    while (num is None or len(served) < num) and (head := queue.heads(anyone)[0]) is not None:
        queue.serve(head)
        queue.check_invariants()
        served.append(head)
    return served


def tenants(waiters: list[Waiter]) -> str:
    return "".join(one.ask.tenant for one in waiters)


def test_queue_serves_one_tenant_in_order_of_arrival() -> None:
    queue = FairQueue()
    waiters = [waiter(tokens=tokens) for tokens in (500, 1, 90)]
    push(queue, *waiters)
    assert serve(queue) == waiters
    assert queue.heads(anyone)[0] is None


def test_queue_serves_a_newcomer_next_when_another_tenant_floods() -> None:
    """A flood of 20 to 1: the other tenant's request waits for one of the flood at most."""
    queue = FairQueue()
    push(queue, *(waiter("a") for _ in range(100)))
    serve(queue, 30)
    push(queue, waiter("b"))
    assert "b" in tenants(serve(queue, 2))


def test_queue_takes_turns_by_tokens_not_by_requests() -> None:
    queue = FairQueue()
    push(queue, *(waiter("a", 300) for _ in range(10)), *(waiter("b", 100) for _ in range(30)))
    served = Counter[str]()
    for one in serve(queue, 20):
        served[one.ask.tenant] += one.charge.tokens
    assert abs(served["a"] - served["b"]) <= 300


def test_queue_serves_by_weight() -> None:
    queue = FairQueue()
    push(queue, *(waiter("a", weight=3) for _ in range(60)), *(waiter("b") for _ in range(60)))
    assert abs(Counter(tenants(serve(queue, 40)))["a"] - 30) <= 1


def test_queue_gives_no_advantage_for_having_been_away() -> None:
    queue = FairQueue()
    push(queue, *(waiter("a") for _ in range(100)))
    serve(queue, 50)
    push(queue, *(waiter("b") for _ in range(50)))
    assert abs(Counter(tenants(serve(queue, 20)))["b"] - 10) <= 1


def test_queue_charges_nobody_for_what_leaves_unserved() -> None:
    """A tenant whose clients give up, again and again, is not served later for it."""
    queue = FairQueue()
    gave_up = [waiter("a", 10_000) for _ in range(5)]
    push(queue, *gave_up, waiter("a"), *(waiter("b") for _ in range(10)))
    for one in gave_up:
        queue.remove(one)
        queue.check_invariants()
    assert "a" in tenants(serve(queue, 2))


def test_queue_tells_who_is_first_within_shares_and_of_the_surplus() -> None:
    queue = FairQueue()
    first, second, third, fourth = waiter("a"), waiter("b"), waiter("c"), waiter("d")
    push(queue, first, second, third, fourth)
    assert queue.heads(lambda one: one.ask.tenant in "cd") == (third, first)
    assert queue.heads(lambda one: one.ask.tenant == "a") == (first, second)
    assert queue.heads(lambda _: False) == (None, first)
    assert queue.heads(anyone) == (first, None)
    assert FairQueue().heads(anyone) == (None, None)


def test_queue_forgets_tenants_when_nobody_waits() -> None:
    """What is remembered is bounded by who waits, not by who ever came."""
    queue = FairQueue()
    for name in range(1000):
        push(queue, waiter(f"tenant-{name}"))
        serve(queue)
    assert queue.start_of("tenant-0") == queue.start_of("never seen") == 0
    queue.check_invariants()


def test_tokens_ahead_are_those_served_before_a_newcomer() -> None:
    queue = FairQueue()
    assert queue.tokens_ahead("b") == 0
    push(queue, *(waiter("a") for _ in range(20)))
    assert queue.tokens_ahead("a") == 2000
    assert queue.tokens_ahead("b") == 100  # the flood's first one only
    push(queue, *(waiter("b") for _ in range(3)))
    assert queue.tokens_ahead("b") == 300 + 400


def test_last_first_is_the_order_of_service_backwards() -> None:
    queue = FairQueue()
    push(queue, *(waiter("a", 100) for _ in range(5)), *(waiter("b", 250) for _ in range(3)))
    backwards = list(queue.last_first())
    assert backwards[::-1] == serve(queue)


def test_last_first_stops_at_those_who_are_served_before_a_newcomer() -> None:
    queue = FairQueue()
    flood = [waiter("a") for _ in range(5)]
    push(queue, *flood)
    assert list(queue.last_first(after=queue.start_of("b"))) == flood[:0:-1]
    assert list(queue.last_first(after=queue.start_of("a"))) == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("abc"), st.integers(1, 1000)),
        st.tuples(st.sampled_from(["serve", "remove"]), st.just("a"), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(STEPS)
def test_queue_holds_what_was_pushed_and_not_taken_whatever_happens(steps: list[tuple[str, str, int]]) -> None:
    queue, waiting = FairQueue(), list[Waiter]()
    for what, tenant, number in steps:
        if what == "push":
            one = waiter(tenant, number, weight={"a": 1.0, "b": 2.0, "c": 0.5}[tenant])
            queue.push(one)
            waiting.append(one)
        elif waiting and what == "remove":
            queue.remove(one := waiting.pop(number % len(waiting)))
        elif head := queue.heads(anyone)[0]:
            of_tenant = [other for other in waiting if other.ask.tenant == head.ask.tenant]
            assert head is of_tenant[0], "within a tenant, in order of arrival"
            queue.serve(head)
            waiting.remove(head)
        queue.check_invariants()
        assert set(queue.last_first()) == set(waiting)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 1000)), min_size=1, max_size=60),
    st.fixed_dictionaries({name: st.sampled_from([0.5, 1.0, 3.0]) for name in "abc"}),
)
def test_queue_is_fair_to_one_request_of_each_while_both_wait(
    asked: list[tuple[str, int]], weights: dict[str, float]
) -> None:
    """The bound of start-time fair queueing: normalised service of two tenants differs by one request of each."""
    queue = FairQueue()
    push(queue, *(waiter(tenant, tokens, weight=weights[tenant]) for tenant, tokens in asked))
    largest = {t: max((n for name, n in asked if name == t), default=0) / weights[t] for t in "abc"}
    left = Counter(tenant for tenant, _ in asked)
    served = dict.fromkeys("abc", 0.0)
    for one in serve(queue):
        tenant = one.ask.tenant
        served[tenant] += one.charge.tokens / weights[tenant]
        left[tenant] -= 1
        for other in "abc":
            if left[other] and left[tenant]:
                assert abs(served[tenant] - served[other]) <= largest[tenant] + largest[other] + 1e-6
