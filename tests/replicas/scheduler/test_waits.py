"""The book of who waits and who is lifted, without a scheduler."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replicas.scheduler.fairness import Wait
from replicas.scheduler.waits import WaitBook
from slo.priority import PriorityClass
from slo.settings.scheduling import AgingPeriods, FairnessSettings

P0, P1, P2 = PriorityClass
FAIR = FairnessSettings(aging_s=AgingPeriods(p1=20, p2=30), suspended_prefill_deadline_s=5)


def make_book(*waits: tuple[str, Wait], max_lifted: int = 1) -> WaitBook:
    book = WaitBook(FAIR.model_copy(update={"max_lifted": max_lifted}))
    for request_id, wait in waits:
        book.begin(request_id, wait)
    return book


def test_wait_book_lifts_by_one_class_at_a_time() -> None:
    book = make_book(("a", Wait(P2, 0)))
    seen = [(now_s, book.lift_due(now_s, P0)) for now_s in range(0, 200, 10)]
    assert [s for s in seen if s[1]] == [(30, [("a", P1)]), (50, [("a", P0)])]
    assert book.own_class("a", P0) is P2


def test_wait_book_goes_through_every_step_when_all_are_overdue() -> None:
    book = make_book(("a", Wait(P2, 0)))
    assert [book.lift_due(1000, P0) for _ in range(3)] == [[("a", P1)], [("a", P0)], []]


def test_wait_book_lifts_who_has_waited_longest_when_places_are_few() -> None:
    book = make_book(("new", Wait(P2, 2)), ("old", Wait(P2, 1)), ("next", Wait(P2, 3)))
    assert book.lift_due(40, P0) == [("old", P1)]
    assert book.lift_due(49, P0) == []
    assert book.lift_due(51, P0) == [("old", P0), ("new", P1)]
    book.forget("old")
    assert book.lift_due(60, P0) == [("new", P0), ("next", P1)]


def test_wait_book_lifts_as_many_as_there_are_places() -> None:
    book = make_book(*((str(i), Wait(P2, i)) for i in range(5)), max_lifted=3)
    assert [request_id for request_id, _ in book.lift_due(40, P0)] == ["0", "1", "2"]


def test_wait_book_lifts_those_that_came_together_in_the_order_in_which_they_came() -> None:
    book = make_book(*((name, Wait(P2, 0)) for name in "cab"), max_lifted=2)
    assert [request_id for request_id, _ in book.lift_due(40, P0)] == ["c", "a"]


def test_wait_book_lifts_a_suspended_prefill_past_one_whose_class_is_served() -> None:
    book = make_book(("waits", Wait(P2, 0)), ("begun", Wait(P2, 30, is_suspended_prefill=True)))
    assert book.lift_due(40, P2) == [("begun", P1)]


def test_wait_book_counts_on_when_a_wait_is_told_again() -> None:
    book = make_book(("a", Wait(P2, 0)), ("a", Wait(P2, 25)))
    assert book.lift_due(30, P0) == [("a", P1)]


def test_wait_book_counts_anew_when_a_request_has_run() -> None:
    book = make_book(("a", Wait(P2, 0)))
    book.end("a")
    assert book.lift_due(100, P0) == []
    book.begin("a", Wait(P2, 100))
    assert book.lift_due(129, P0) == []
    assert book.lift_due(130, P0) == [("a", P1)]


def test_wait_book_ends_a_lift_after_a_grain_and_not_before() -> None:
    book = make_book(("a", Wait(P2, 0)))
    book.lift_due(30, P0)
    assert book.note_run("a", 200, 800) is None
    assert book.note_run("a", 200, 600) is None
    assert book.lifted_ids == ("a",)
    assert book.note_run("a", 200, 400) is P2
    assert book.lifted_ids == ()


def test_wait_book_keeps_a_lift_when_its_request_is_preempted_before_its_grain_is_done() -> None:
    book = make_book(("a", Wait(P2, 0)))
    book.lift_due(30, P0)
    book.end("a")
    assert book.note_run("a", 500, 500) is None
    book.begin("a", Wait(P1, 35))
    assert book.lift_due(55, P0) == [("a", P0)]
    assert book.own_class("a", P0) is P2


class _AnyUse(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.book = make_book(max_lifted=2)
        self.counts_as: dict[str, PriorityClass] = {}
        self.now_s = 0.0

    ids = st.integers(0, 9).map(str)

    @rule(request_id=ids, priority=st.sampled_from(PriorityClass), is_suspended=st.booleans())
    def begin(self, request_id, priority, is_suspended) -> None:
        counts_as = self.counts_as.setdefault(request_id, priority)
        self.book.begin(request_id, Wait(counts_as, self.now_s, is_suspended))

    @rule(after_s=st.floats(0, 40), lowest=st.sampled_from([None, *PriorityClass]))
    def lift(self, after_s, lowest) -> None:
        self.now_s += after_s
        for request_id, counts_as in self.book.lift_due(self.now_s, lowest):
            assert self.counts_as[request_id].level == counts_as.level + 1
            self.counts_as[request_id] = counts_as

    @rule(request_id=ids, num_tokens=st.integers(1, 600), num_left=st.integers(0, 600))
    def run(self, request_id, num_tokens, num_left) -> None:
        self.book.end(request_id)
        if request_id in self.book.lifted_ids:
            own = self.book.note_run(request_id, num_tokens, num_left)
            if own is not None:
                assert self.counts_as[request_id].outranks(own)
                self.counts_as[request_id] = own

    @rule(request_id=ids)
    def forget(self, request_id) -> None:
        self.book.forget(request_id)
        self.counts_as.pop(request_id, None)

    @invariant()
    def holds(self) -> None:
        self.book.check_invariants()
        assert len(self.book) <= len(self.counts_as)


TestWaitBookWhateverIsDone = _AnyUse.TestCase
TestWaitBookWhateverIsDone.settings = settings(derandomize=True, deadline=None, database=None, max_examples=100)
