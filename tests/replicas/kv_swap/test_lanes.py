"""The order in which moves run.

Mutations tried, each failing here: no wait for other lanes; a wait for every earlier move; the wait for blocks, slots
or files left out; a move that was queued runs after the end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from replicas.kv_swap.lanes import Lane, Lanes, Touched

ONE_EACH = [frozenset({lane}) for lane in Lane]
PATIENCE_S = 30.0


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    lanes = Lanes(ONE_EACH, lambda: None)
    yield lanes
    assert lanes.close(PATIENCE_S)


class Gate:
    """A move that runs until it is let go."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.open.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("touched", "also_touched", "meets"),
    [
        (Touched(blocks=frozenset({1, 2})), Touched(blocks=frozenset({2, 3})), True),
        (Touched(blocks=frozenset({1})), Touched(slots=frozenset({1})), False),
        (Touched(slots=frozenset({1})), Touched(slots=frozenset({1})), True),
        (Touched(file_id=1), Touched(file_id=1), True),
        (Touched(file_id=1), Touched(file_id=2), False),
        (Touched(), Touched(), False),
        (Touched(blocks=frozenset({1}), slots=frozenset({2})), Touched(frozenset({3}), frozenset({4})), False),
    ],
)
def test_touched_meets_what_it_shares(touched: Touched, also_touched: Touched, meets: bool) -> None:
    assert touched.meets(also_touched) is meets
    assert also_touched.meets(touched) is meets


def test_moves_of_one_lane_run_in_order(lanes: Lanes) -> None:
    ran: list[int] = []
    last = threading.Event()
    for number in range(20):
        lanes.submit(Lane.OUT, Touched(), lambda n=number: ran.append(n))
    lanes.submit(Lane.OUT, Touched(), last.set)
    assert last.wait(PATIENCE_S)
    assert ran == list(range(20))


def test_move_waits_for_an_earlier_one_of_another_lane_that_touches_the_same(lanes: Lanes) -> None:
    gate, ran = Gate(), threading.Event()
    seen_open: list[bool] = []
    lanes.submit(Lane.OUT, Touched(slots=frozenset({1, 2})), gate)
    assert gate.begun.wait(PATIENCE_S)

    def load() -> None:
        seen_open.append(gate.open.is_set())
        ran.set()

    lanes.submit(Lane.IN, Touched(slots=frozenset({2, 3})), load)
    unrelated = threading.Event()
    lanes.submit(Lane.FILE, Touched(slots=frozenset({4})), unrelated.set)
    assert unrelated.wait(PATIENCE_S)
    assert not ran.is_set()
    gate.open.set()
    assert ran.wait(PATIENCE_S)
    assert seen_open == [True]


def test_move_waits_for_no_other_when_it_touches_nothing_of_theirs(lanes: Lanes) -> None:
    gate, ran = Gate(), threading.Event()
    lanes.submit(Lane.FILE, Touched(blocks=frozenset({1}), file_id=1), gate)
    lanes.submit(Lane.OUT, Touched(blocks=frozenset({2})), ran.set)
    assert ran.wait(PATIENCE_S)
    gate.open.set()


def test_chain_of_moves_across_lanes_ends(lanes: Lanes) -> None:
    ran: list[int] = []
    last = threading.Event()
    for number in range(60):
        lanes.submit(list(Lane)[number % 3], Touched(blocks=frozenset({1})), lambda n=number: ran.append(n))
    lanes.submit(Lane.IN, Touched(blocks=frozenset({1})), last.set)
    assert last.wait(PATIENCE_S)
    assert ran == list(range(60))


def test_one_thread_may_carry_several_lanes() -> None:
    lanes = Lanes([frozenset({Lane.OUT, Lane.IN}), frozenset({Lane.FILE})], lambda: None)
    threads: list[int] = []
    for lane in Lane:
        lanes.submit(lane, Touched(blocks=frozenset({1})), lambda: threads.append(threading.get_ident()))
    last = threading.Event()
    lanes.submit(Lane.FILE, Touched(blocks=frozenset({1})), last.set)
    assert last.wait(PATIENCE_S)
    assert threads[0] == threads[1] != threads[2]
    assert lanes.close(PATIENCE_S)


def test_each_thread_is_prepared_before_its_first_move() -> None:
    prepared: list[int] = []
    lanes = Lanes(ONE_EACH, lambda: prepared.append(threading.get_ident()))
    seen, last = [], threading.Event()
    lanes.submit(Lane.OUT, Touched(), lambda: seen.append(threading.get_ident() in prepared))
    lanes.submit(Lane.OUT, Touched(), last.set)
    assert last.wait(PATIENCE_S)
    assert seen == [True]
    assert lanes.close(PATIENCE_S)


def test_close_ends_what_runs_and_begins_nothing_more() -> None:
    lanes, gate, ran = Lanes(ONE_EACH, lambda: None), Gate(), threading.Event()
    lanes.submit(Lane.OUT, Touched(blocks=frozenset({1})), gate)
    lanes.submit(Lane.OUT, Touched(), ran.set)
    lanes.submit(Lane.IN, Touched(blocks=frozenset({1})), ran.set)
    assert gate.begun.wait(PATIENCE_S)
    assert not lanes.close(0.0)
    gate.open.set()
    assert lanes.close(PATIENCE_S)
    assert not ran.is_set()
