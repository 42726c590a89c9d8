"""Mutations tried by hand, each found by a test here: own requests counted twice, once as told; what was told kept when
stale; the same telling taken for a new one; requests of one id counted once; prompts sent lately not counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing_load import LAG_S, ReplicaLoad
from app.routing_policy import NOBODY, CallView, ReplicaView, ToldView, at_least
from slo.priority import PriorityClass
from slo.routing import NOTHING, ByClass, RoutingStats

P0, P1, P2 = PriorityClass
STALE_AFTER_S = 3.0


def stats(number: int = 1, ongoing: dict[str, ByClass] | None = None, unread: ByClass = NOTHING) -> dict[str, object]:
    return RoutingStats(number, ongoing or {}, 10_000, unread, 0.02).as_dict()


@pytest.fixture
def load() -> ReplicaLoad:
    return ReplicaLoad("a", "me", STALE_AFTER_S)


def told(view: ReplicaView) -> ToldView:
    assert view.told is not None
    return view.told


def test_load_of_a_replica_that_told_nothing_is_what_was_sent(load: ReplicaLoad) -> None:
    assert load.view(0.0) == ReplicaView("a", NOBODY, None)
    load.sent("1", CallView(P1, 3), 0.0)
    load.sent("2", CallView(P2), 0.0)
    assert load.view(0.0) == ReplicaView("a", at_least((0, 3, 1)), None)
    assert (load.num_sent, load.is_idle, load.num_told(0.0)) == (2, False, None)


def test_load_counts_own_requests_as_they_are_and_the_others_as_told(load: ReplicaLoad) -> None:
    load.sent("1", CallView(P0), 0.0)
    assert load.told(stats(1, {"me": (5, 5, 5), "you": (1, 0, 2), "they": (0, 1, 0)}), 0.5)
    view = load.view(0.6)
    assert (view.own, told(view).others) == (at_least((1, 0, 0)), at_least((1, 1, 2)))
    assert load.num_told(0.6) == 5


def test_load_falls_when_a_request_ends(load: ReplicaLoad) -> None:
    load.sent("1", CallView(P0), 0.0)
    load.sent("1", CallView(P2), 0.0)
    load.ended("1")
    assert load.view(0.0).own == at_least((0, 0, 1)), "an id may be used again, and the first goes first"
    load.ended("1")
    load.ended("1")
    load.ended("unknown")
    assert (load.view(0.0).own, load.is_idle) == (NOBODY, True)


def test_load_that_was_told_too_long_ago_is_absent(load: ReplicaLoad) -> None:
    load.told(stats(1, {"you": (9, 0, 0)}), 10.0)
    assert load.view(10.0 + STALE_AFTER_S).told is not None
    assert load.view(10.1 + STALE_AFTER_S).told is None
    assert load.num_told(10.1 + STALE_AFTER_S) is None
    load.told(stats(2), 20.0)
    assert told(load.view(20.0)).others == NOBODY


def test_telling_that_is_delivered_again_is_no_sign_of_life(load: ReplicaLoad) -> None:
    assert load.told(stats(1), 10.0)
    assert not load.told(stats(1), 12.0)
    assert load.view(10.1 + STALE_AFTER_S).told is None


def test_telling_of_another_version_is_absent(load: ReplicaLoad) -> None:
    assert not load.told({}, 10.0)
    assert not load.told({"number": 1, "of_another_version": 2}, 10.0)
    assert load.view(10.0).told is None


def test_prompts_sent_since_take_of_the_kv_and_are_still_to_be_read(load: ReplicaLoad) -> None:
    load.told(stats(1, unread=(10, 0, 0)), 10.0)
    load.sent("1", CallView(P2, 1, 4_000), 10.1)
    load.sent("2", CallView(P0, 1, 500), 10.2)
    view = told(load.view(10.3))
    assert (view.free_kv_tokens, view.unread_tokens) == (5_500, at_least((510, 0, 4_000)))
    load.sent("3", CallView(P2, 1, 9_000), 10.4)
    assert told(load.view(10.5)).free_kv_tokens == 0


def test_prompts_count_no_more_when_they_were_read(load: ReplicaLoad) -> None:
    load.told(stats(1), 10.0)
    load.sent("1", CallView(P0, 1, 4_000), 10.1, read_tokens=3_000)
    assert told(load.view(10.2)).unread_tokens == at_least((1_000, 0, 0))
    load.ended("1")
    assert (told(load.view(10.2)).unread_tokens, told(load.view(10.2)).free_kv_tokens) == (NOBODY, 10_000)


def test_prompts_count_until_the_engine_must_have_counted_them(load: ReplicaLoad) -> None:
    load.sent("1", CallView(P2, 1, 4_000), 10.0)
    load.told(stats(1), 10.0 + LAG_S)
    assert told(load.view(11.0)).free_kv_tokens == 6_000
    load.told(stats(2), 10.1 + LAG_S)
    assert told(load.view(11.2)).free_kv_tokens == 10_000


def test_prompts_are_not_kept_where_nothing_is_ever_told(load: ReplicaLoad) -> None:
    for i in range(1000):
        load.sent(str(i), CallView(P2, 1, 10), float(i))
        load.ended(str(i))
    assert len(load._lately) <= STALE_AFTER_S + LAG_S + 1


@given(st.lists(st.tuples(st.sampled_from("se"), st.sampled_from("abc"), st.sampled_from(PriorityClass))))
def test_load_adds_up_whatever_comes_and_goes(steps: list[tuple[str, str, PriorityClass]]) -> None:
    load = ReplicaLoad("a", "me", STALE_AFTER_S)
    for step, request_id, priority in steps:
        if step == "s":
            load.sent(request_id, CallView(priority, 2), 0.0)
        else:
            load.ended(request_id)
        load.check_invariants()
