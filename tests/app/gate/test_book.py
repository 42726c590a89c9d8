"""The book without an event loop. What the gate makes of it is in `test_gate.py`, with its properties."""

from __future__ import annotations

from typing import Any

from app.gate.admission import Refuse
from app.gate.ask import Ask, Waiter
from app.gate.book import Admitted, GateBook
from app.gate.ending import Ending
from app.gate.load import Load
from slo.messages import Standing
from slo.priority import PriorityClass
from slo.settings import parse_settings

P0, P1, P2 = PriorityClass
LIMITS: dict[str, Any] = {"p2": {"queue_timeout_s": 10, "max_in_flight": 1, "max_queued": 2}}


class Hall:
    """A book, and the waiters as it tells them."""

    def __init__(self, num_replicas: int = 1) -> None:
        self.told: list[tuple[int, Ending]] = []
        self.left: set[int] = set()
        self.waiting: set[int] = set()
        self.book = GateBook(parse_settings({"admission": LIMITS}), num_replicas, self, 0.0)

    def has_left(self, waiter: Waiter) -> bool:
        return waiter.number in self.left

    def let_in(self, waiter: Waiter, standing: Standing) -> None:
        assert standing == Standing()  # of one tenant, and of P2
        self._tell(waiter, Ending.ADMITTED)

    def turn_away(self, waiter: Waiter, ending: Ending, retry_after_s: int) -> None:
        assert (retry_after_s > 0) == (ending is Ending.DISPLACED)
        self._tell(waiter, ending)

    def enter(self, tenant: str = "a", at_s: float = 0.0, priority: PriorityClass = P2) -> Admitted | Waiter | Refuse:
        self.book.settle(at_s)
        entered = self.book.enter(Ask("r", priority, tenant, 1.0, Load(1, 100, 10)), at_s)
        if isinstance(entered, Waiter):
            self.waiting.add(entered.number)
        self.settle(at_s)
        return entered

    def settle(self, at_s: float) -> None:
        self.book.settle(at_s)
        self.book.check_invariants(self.waiting, at_s)

    def _tell(self, waiter: Waiter, ending: Ending) -> None:
        self.waiting.remove(waiter.number)
        self.told.append((waiter.number, ending))


def full() -> Hall:
    """One in flight, number 0, and two that wait, 1 and 2."""
    hall = Hall()
    assert isinstance(hall.enter(), Admitted)
    assert all(isinstance(hall.enter(), Waiter) for _ in range(2))
    return hall


def test_room_in_flight_goes_to_the_first_that_waits() -> None:
    hall = full()
    hall.book.release(0)
    hall.settle(1.0)
    assert hall.told == [(1, Ending.ADMITTED)]
    assert (len(hall.book), hall.book.num_queued(P2), hall.book.next_deadline_s) == (1, 1, 10.0)


def test_full_queue_refuses_and_a_tenant_with_less_displaces_who_would_be_last() -> None:
    hall = full()
    refusal = hall.enter()
    assert isinstance(refusal, Refuse)
    assert refusal.reason is Ending.NO_ROOM
    assert isinstance(hall.enter(tenant="b"), Waiter)
    assert hall.told == [(2, Ending.DISPLACED)]


def test_waiters_expire_and_without_a_replica_are_told_so() -> None:
    hall = full()
    hall.settle(10.0)
    assert hall.told == [(1, Ending.EXPIRED), (2, Ending.EXPIRED)]
    nobody = Hall(num_replicas=0)
    nobody.enter()
    nobody.settle(10.0)
    assert nobody.told == [(0, Ending.NO_REPLICA)]


def test_who_has_left_takes_nobodys_place() -> None:
    hall = full()
    hall.left = {1}
    hall.book.release(0)
    hall.settle(1.0)
    assert hall.told == [(1, Ending.LEFT), (2, Ending.ADMITTED)]
    assert hall.book.state(1.0)[P2].endings == {Ending.ADMITTED: 2, Ending.LEFT: 1}


def test_closed_book_turns_all_away_that_wait_and_come() -> None:
    hall = full()
    hall.book.close()
    refusal = hall.enter(priority=P0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is Ending.CLOSED
    assert hall.told == [(1, Ending.CLOSED), (2, Ending.CLOSED)]
    hall.book.release(0)
    hall.settle(1.0)


def test_replicas_that_come_make_room_at_the_next_settling() -> None:
    hall = Hall(num_replicas=0)
    hall.enter()
    assert not hall.book.set_num_replicas(0)
    assert hall.book.set_num_replicas(1)
    hall.settle(1.0)
    assert hall.told == [(0, Ending.ADMITTED)]
