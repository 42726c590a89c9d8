"""Mutations that these tests see: admit past someone who waits; leave out the class's limit or that of all classes;
count surplus for what is within a share, or not for surplus; let surplus hold others, or pass who waits;
estimate with the own class only; refuse at an unknown rate; displace for no need; no bound on
bytes; Retry-After unbounded, or below a second; hold nobody back; never let the aged go; room of the more urgent for
all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.gate.admission import (
    Admit,
    Candidate,
    ClassView,
    GateView,
    Queue,
    Refuse,
    choose_next,
    decide_admission,
    estimate_wait_s,
    fits_in_flight,
    retry_after_s_of_last,
)
from app.gate.ask import Ask
from app.gate.ending import Ending
from app.gate.limits import ClassLimits, GateLimits
from app.gate.load import Load, Room
from app.gate.shares import Shares
from slo.priority import PriorityClass
from slo.settings.scheduling import AgingPeriods
from tests.app.gate.waiters import waiter

P0, P1, P2 = PriorityClass
MAX_RETRY_AFTER_S = 120
NOW_S = 50.0


def class_limits(**changes: Any) -> ClassLimits:
    limits = ClassLimits(
        in_flight=Room(4, 4000),
        in_flight_at_most=Room(8, 8000),
        in_flight_with_surplus=Room(4, 4000),
        in_flight_of_all=12,
        slots=4,
        unshared=2,
        unshared_of_one=3,
        queue=Room(5, 5000),
        queue_timeout_s=10,
        max_wait_s=8,
    )
    return replace(limits, **changes)


def view(
    classes: dict[PriorityClass, ClassView] | None = None,
    limits: dict[PriorityClass, ClassLimits] | None = None,
    num_replicas: int = 1,
    max_held_bytes: int = 1000,
    **found: Any,
) -> GateView:
    of = {c: class_limits() for c in PriorityClass} | (limits or {})
    views = {c: ClassView() for c in PriorityClass} | (classes or {})
    return GateView(GateLimits(num_replicas, of, max_held_bytes), views, **found)


def ask(priority: PriorityClass = P1, sequences: int = 1, tokens: int = 100, is_alone: bool = True) -> Ask:
    return Ask("r", priority, "a", 1.0, Load(sequences, tokens, 10), is_alone)


def decide(found: GateView, asked: Ask | None = None) -> Admit | Queue | Refuse:
    return decide_admission(found, asked or ask(), MAX_RETRY_AFTER_S, NOW_S)


QUEUED = Queue(NOW_S + 10)
FULL = ClassView(within=Load(4, 400, 40))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (view(), Admit()),
        (view({P1: ClassView(within=Load(3, 300))}), Admit()),
        (view({P1: FULL}), QUEUED),
        (view({P1: ClassView(within=Load(1, 3950))}), QUEUED),  # by tokens
        (view({P2: FULL}), Admit()),  # another class's room is not its own
        (view({P1: ClassView(is_held=True, queued=Load(1, 100))}), QUEUED),
        (view({P0: ClassView(is_held=True, queued=Load(1, 100))}), QUEUED),
        (view({P2: ClassView(is_held=True, queued=Load(1, 100))}), Admit()),
        (view({P1: ClassView(is_held=False, queued=Load(1, 100))}), Admit()),  # those that wait have their shares
        (view({P0: ClassView(within=Load(12, 1))}), QUEUED),  # all classes together
        (view({P0: ClassView(within=Load(11, 1))}), Admit()),
    ],
)
def test_decide_admits_when_there_is_room_and_nobody_waits_before(found: GateView, expected: Admit | Queue) -> None:
    assert decide(found) == expected


def test_decide_lets_a_request_wait_for_a_replica_when_none_runs() -> None:
    assert decide(view(num_replicas=0)) == QUEUED
    slow = {P1: ClassView(queued=Load(1, 100), tokens_per_s=1.0)}
    assert decide(view(slow, num_replicas=0, tokens_ahead=100)) == QUEUED, (
        "a rate tells nothing of a replica that starts"
    )
    assert isinstance(decide(view(slow, tokens_ahead=100, is_behind_own=True)), Refuse)


IN_SHARE, BEYOND = Shares(1 / 2, within=3, of_tenant=1), Shares(1 / 2, within=3, of_tenant=2)
OF_OTHERS = ask(is_alone=False)


@pytest.mark.parametrize(
    ("shares", "asked", "is_surplus"), [(IN_SHARE, OF_OTHERS, False), (BEYOND, OF_OTHERS, True), (BEYOND, ask(), False)]
)
def test_decide_admits_as_surplus_what_a_tenant_among_others_has_beyond_its_share(
    shares: Shares, asked: Ask, is_surplus: bool
) -> None:
    assert decide(view({P1: ClassView(within=Load(3, 300))}, shares=shares), asked) == Admit(is_surplus=is_surplus)


@pytest.mark.parametrize(
    ("of_class", "of_p2", "shares", "expected"),
    [
        (ClassView(within=Load(3, 300), surplus=Load(4, 400)), Load(), IN_SHARE, Admit()),  # surplus yields to it
        (ClassView(within=Load(4, 400)), Load(), IN_SHARE, Admit()),  # one in advance
        (ClassView(within=Load(5, 500)), Load(), IN_SHARE, QUEUED),
        (ClassView(within=Load(2, 200), surplus=Load(1, 100)), Load(), BEYOND, Admit(is_surplus=True)),
        (ClassView(within=Load(2, 200), surplus=Load(2, 200)), Load(), BEYOND, QUEUED),
        (ClassView(within=Load(2, 200), surplus=Load(1, 3800)), Load(), BEYOND, QUEUED),  # by tokens
        (ClassView(within=Load(2, 200)), Load(3, 300), BEYOND, Admit(is_surplus=True)),
        (ClassView(within=Load(2, 200)), Load(4, 400), BEYOND, QUEUED),  # all together: P2's limit is its own
        (ClassView(within=Load(2, 200)), Load(4, 400), IN_SHARE, Admit()),
        (ClassView(within=Load(2, 200), queued=Load(1, 100)), Load(), BEYOND, QUEUED),  # other surplus waits before it
        (ClassView(within=Load(2, 200), queued=Load(1, 100)), Load(), IN_SHARE, Admit()),
    ],
)
def test_decide_gives_surplus_what_the_class_leaves_and_shares_what_surplus_has(
    of_class: ClassView, of_p2: Load, shares: Shares, expected: Admit | Queue
) -> None:
    limits = {P1: class_limits(in_flight=Room(5, 4000)), P2: class_limits(in_flight_of_all=6)}
    found = view({P1: of_class, P2: ClassView(within=of_p2)}, limits, shares=shares)
    assert decide(found, OF_OTHERS) == expected


def test_decide_admits_a_surplus_request_of_many_sequences_where_as_many_as_a_share_fit() -> None:
    large, shares = ask(sequences=9, is_alone=False), Shares(1 / 2, within=2, of_tenant=0)
    assert decide(view({P1: ClassView(within=Load(2, 200))}, shares=shares), large) == Admit(is_surplus=True)
    assert decide(view({P1: ClassView(within=Load(3, 300))}, shares=shares), large) == QUEUED


def test_decide_gives_surplus_of_an_idle_tenant_the_room_of_its_class() -> None:
    """It holds its class up while it waits, so it must not wait for the room of a less urgent one too."""
    limits, batch = {P2: class_limits(in_flight_of_all=4)}, {P2: ClassView(within=Load(3, 300))}
    large, shares = ask(sequences=4, is_alone=False), Shares(1 / 2, within=0, of_tenant=0)
    assert decide(view(batch, limits, shares=shares), large) == QUEUED
    assert decide(view(batch, limits, shares=replace(shares, is_idle=True)), large) == Admit(is_surplus=True)


@pytest.mark.parametrize("most", [Room(6, 8000), Room(8, 650)])
def test_decide_never_exceeds_the_most_of_a_class_whoever_yields(most: Room) -> None:
    limits = {P1: class_limits(in_flight_at_most=most)}
    held = ClassView(within=Load(3, 300), surplus=Load(3, 300))
    assert decide(view({P1: held}, limits, shares=IN_SHARE), OF_OTHERS) == QUEUED
    assert decide(view({P1: held}, shares=IN_SHARE), OF_OTHERS) == Admit()


def test_decide_keeps_a_tenants_requests_in_their_order() -> None:
    assert decide(view({P1: ClassView(queued=Load(1, 100))}, is_behind_own=True)) == QUEUED


@pytest.mark.parametrize("asked", [ask(sequences=99), ask(tokens=99_999)])
def test_decide_admits_a_request_larger_than_the_limit_when_it_is_alone(asked: Ask) -> None:
    assert decide(view(), asked) == Admit()
    shares = Shares(1, within=2, of_tenant=2)
    assert decide(view({P1: ClassView(within=Load(2, 3999))}, shares=shares), asked) == QUEUED


@pytest.mark.parametrize(
    ("tokens_ahead", "rate", "expected"),
    [
        (800, 100.0, QUEUED),  # 8 s: as long as it may be expected to
        (801, 100.0, Refuse(Ending.WAIT_TOO_LONG, 9)),
        (10**9, None, QUEUED),  # unknown is not long
        (0, None, QUEUED),
        (10**9, 100.0, Refuse(Ending.WAIT_TOO_LONG, MAX_RETRY_AFTER_S)),
    ],
)
def test_decide_refuses_early_when_the_wait_would_outlast_the_time_out(
    tokens_ahead: int, rate: float | None, expected: Queue | Refuse
) -> None:
    own = replace(FULL, queued=Load(1, 100, 10), tokens_per_s=rate)
    assert decide(view({P1: own}, tokens_ahead=tokens_ahead)) == expected


def test_estimate_counts_what_is_more_urgent_at_its_own_rate() -> None:
    classes = {
        P0: ClassView(queued=Load(1, 300), tokens_per_s=100.0),
        P1: ClassView(queued=Load(9, 900), tokens_per_s=50.0),
        P2: ClassView(queued=Load(9, 10**9), tokens_per_s=None),
    }
    assert estimate_wait_s(view(classes), P1, 500) == 3 + 10
    assert estimate_wait_s(view(classes), P0, 100) == 1
    assert estimate_wait_s(view(classes), P2, 1) is None
    assert estimate_wait_s(view(), P2, 0) == 0


@pytest.mark.parametrize(
    ("rate", "retry_after_s"), [(None, 10), (900.0, 1), (90_000.0, 1), (300.0, 3), (299.0, 4), (0.5, MAX_RETRY_AFTER_S)]
)
def test_retry_after_is_when_those_ahead_are_done_in_whole_seconds(rate: float | None, retry_after_s: int) -> None:
    """Where the rate is unknown: when those who wait have been served or given up."""
    own = replace(FULL, queued=Load(5, 900, 10), tokens_per_s=rate)
    assert retry_after_s_of_last(view({P1: own}), P1, MAX_RETRY_AFTER_S) == retry_after_s


def test_decide_refuses_when_the_queue_is_full_and_nobody_is_behind() -> None:
    def of(queued: Load) -> GateView:
        return view({P2: replace(FULL, queued=queued)}, tokens_ahead=queued.tokens)

    assert decide(of(Load(5, 500)), ask(P2)) == Refuse(Ending.NO_ROOM, 10)
    assert decide(of(Load(4, 500)), ask(P2)) == QUEUED
    assert decide(of(Load(1, 4950)), ask(P2)) == Refuse(Ending.NO_ROOM, 10)


@pytest.mark.parametrize(
    ("p0", "p1", "p2", "asker", "is_queued"),
    [
        (0, 0, 5, P2, False),
        (0, 5, 5, P1, False),
        (5, 5, 5, P0, False),
        (0, 6, 4, P1, False),
        (0, 9, 0, P1, True),  # P2's room is P1's too
        (0, 10, 0, P1, False),
        (14, 0, 0, P0, True),  # and all of it is P0's
        (15, 0, 0, P0, False),
        (15, 0, 0, P2, False),
        (11, 0, 4, P2, False),
        (5, 0, 4, P2, True),
    ],
)
def test_queue_room_is_shared_upwards_only(p0: int, p1: int, p2: int, asker: PriorityClass, is_queued: bool) -> None:
    queued = {c: replace(FULL, queued=Load(n, n)) for c, n in ((P0, p0), (P1, p1), (P2, p2))}
    assert isinstance(decide(view(queued), ask(asker, tokens=1)), Queue) is is_queued


def test_decide_displaces_the_last_to_be_served_and_no_more_than_needed() -> None:
    behind = [waiter(priority=P2, tokens=100) for _ in range(5)]
    found = view({P0: replace(FULL, queued=Load(10, 1000)), P2: replace(FULL, queued=Load(5, 500))}, behind=behind)
    assert decide(found, ask(P0)) == Queue(NOW_S + 10, (behind[0],))
    assert decide(found, ask(P0, sequences=3)) == Queue(NOW_S + 10, tuple(behind[:3]))


def test_decide_displaces_nobody_when_there_is_room() -> None:
    behind = [waiter(priority=P2) for _ in range(4)]
    assert decide(view({P1: FULL, P2: replace(FULL, queued=Load(4, 400))}, behind=behind)) == QUEUED


def test_decide_displaces_nobody_when_even_all_would_not_do() -> None:
    behind = [waiter(priority=P2)]
    classes = {P1: replace(FULL, queued=Load(9, 900)), P2: ClassView(queued=Load(1, 100))}
    found = view(classes, behind=behind, tokens_ahead=900)
    assert decide(found, ask(P1, sequences=3)) == Refuse(Ending.NO_ROOM, 10)


def test_decide_keeps_the_bodies_within_their_bound() -> None:
    behind = [waiter(priority=P2)]
    almost = {P1: ClassView(within=Load(1, 1, 945)), P2: replace(FULL, queued=Load(1, 100, 10))}
    assert decide(view(almost, behind=behind)) == Admit((behind[0],))
    assert decide(view(almost)) == Refuse(Ending.NO_ROOM, 1)
    assert decide(view({P1: ClassView(within=Load(1, 1, 990))})) == Admit()


def test_decide_admits_a_body_larger_than_the_bound_when_nothing_else_is_held() -> None:
    assert decide(view(max_held_bytes=5)) == Admit()
    assert decide(view({P2: ClassView(within=Load(1, 1, 1))}, max_held_bytes=5)) == Refuse(Ending.NO_ROOM, 1)


def test_nothing_fits_in_flight_when_no_replica_runs() -> None:
    none = dict.fromkeys(PriorityClass, class_limits(in_flight=Room(0, 0), in_flight_at_most=Room(0, 0)))
    assert not fits_in_flight(view(limits=none, num_replicas=0), ask(), is_surplus=False)
    assert not fits_in_flight(view(limits=none, num_replicas=0), ask(), is_surplus=True)


AGING_S = AgingPeriods(p1=20, p2=30)


@pytest.mark.parametrize(
    ("heads", "room_for", "now_s", "chosen"),
    [
        ((P0, P1, P2), (P0, P1, P2), 1, P0),
        ((P1, P2), (P1, P2), 1, P1),
        ((P0, P1, P2), (P1, P2), 1, None),  # P0 is held: the others would only wait in the engine
        ((P0, P1, P2), (P1, P2), 20, P1),  # after its aging period it goes nevertheless
        ((P0, P1, P2), (P2,), 29, None),
        ((P0, P1, P2), (P2,), 30, P2),
        ((P1, P2), (P2,), 1, None),
        ((P2,), (P2,), 1, P2),
        ((P2,), (), 99, None),
        ((P0, P2), (P0, P2), 99, P0),
        ((), (P0, P1, P2), 99, None),
    ],
)
def test_choose_next_goes_by_class_and_lets_nobody_starve(
    heads: tuple[PriorityClass, ...], room_for: tuple[PriorityClass, ...], now_s: float, chosen: PriorityClass | None
) -> None:
    candidates = {c: Candidate(waiter(priority=c, arrived_s=0)) for c in heads}
    following = choose_next(candidates.values(), lambda one: one.waiter.ask.priority in room_for, AGING_S, now_s)
    assert following is (None if chosen is None else candidates[chosen])


def test_choose_next_lets_surplus_hold_nobody_and_be_held_unless_it_has_a_turn() -> None:
    within, batch = Candidate(waiter(priority=P1)), waiter(priority=P2)
    surplus = Candidate(waiter(priority=P1), is_surplus=True, has_turn=False)
    in_turn = Candidate(waiter(priority=P1), is_surplus=True)

    def chosen(*candidates: Candidate, full: Candidate) -> Candidate | None:
        return choose_next(candidates, lambda one: one is not full, AGING_S, now_s=1)

    last = Candidate(batch)
    assert chosen(within, surplus, last, full=last) is within
    assert chosen(within, surplus, last, full=within) is None
    assert chosen(surplus, last, full=surplus) is last
    assert chosen(in_turn, last, full=in_turn) is None


def test_choose_next_never_lifts_a_class_without_an_aging_period() -> None:
    candidates = [Candidate(waiter(priority=c)) for c in (P0, P1)]
    assert choose_next(candidates, lambda one: one is candidates[1], AgingPeriods(p1=None), 1e9) is None
