from app.gate.ask import Waiter
from app.gate.backlog import Backlog
from app.gate.load import Load
from slo.priority import PriorityClass
from tests.app.gate.waiters import waiter

P0, P1, P2 = PriorityClass


def backlog_of(*waiters: Waiter) -> Backlog:
    backlog = Backlog()
    for one in waiters:
        backlog.push(one)
        backlog.check_invariants()
    return backlog


def test_backlog_sums_a_class_with_those_less_urgent() -> None:
    backlog = backlog_of(*(waiter(priority=c, tokens=10 ** (c.level + 1)) for c in PriorityClass))
    assert [backlog.queues[c].load for c in PriorityClass] == [Load(1, 10, 10), Load(1, 100, 10), Load(1, 1000, 10)]
    assert len(backlog) == len(list(backlog)) == 3


def test_backlog_is_empty_again_when_all_have_left() -> None:
    waiters = [waiter(priority=c) for c in (P0, P1, P1, P2)]
    backlog = backlog_of(*waiters)
    backlog.serve(waiters[1])
    backlog.remove(waiters[3])
    backlog.check_invariants()
    assert set(backlog) == {waiters[0], waiters[2]}
    backlog.remove(waiters[0])
    backlog.remove(waiters[2])
    backlog.check_invariants()
    assert (len(backlog), backlog.next_deadline_s()) == (0, None)


def test_backlog_knows_who_has_expired_in_every_class() -> None:
    early, late = waiter(priority=P0, deadline_s=2), waiter(priority=P0, deadline_s=3)
    batch = waiter(priority=P2, deadline_s=2.5)
    backlog = backlog_of(batch, early, late)
    assert backlog.next_deadline_s() == 2
    assert backlog.expired(1.9) == []
    assert backlog.expired(2) == [early]
    assert backlog.expired(2.5) == [early, batch]
    assert backlog.expired(9) == [early, late, batch]


def test_behind_a_newcomer_are_less_urgent_classes_from_the_end_then_its_own_class() -> None:
    p0, p1, flood, p2 = waiter(priority=P0), waiter("b"), [waiter("a") for _ in range(3)], waiter(priority=P2)
    backlog = backlog_of(p0, p1, *flood, p2)
    assert list(backlog.behind(P0, "c")) == [p2, flood[2], flood[1], flood[0], p1]
    assert list(backlog.behind(P1, "c")) == [p2, flood[2], flood[1]]
    assert list(backlog.behind(P1, "a")) == [p2]
    assert list(backlog.behind(P2, "c")) == []
