"""Mutations tried, each seen by a test here: a silent period's newcomer counted whole; a newcomer never counted whole;
an old answer taken; stale states kept; marks never dropped; a source forgotten at once; the gone subtracted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscale.window import MAX_GONE_SOURCES, Recent, Window
from slo import metrics
from slo.snapshots import EngineSnapshot
from tests.autoscale.fleet import P0, collection, completed, engine, ingress

PERIOD_S = 10.0
STALE_S = 25.0


def window() -> Window:
    return Window(window_s=30, period_s=PERIOD_S, stale_after_s=STALE_S)


def add(w: Window, now_s: float, **brought: object) -> Recent:
    recent = w.add(collection(now_s, **brought), now_s)  # type: ignore[arg-type]
    w.check_invariants()
    return recent


def test_first_period_has_no_span_and_nothing_has_grown() -> None:
    recent = add(window(), 5, engines=[engine(steps=7)])
    assert recent.span_s is None
    assert not any(recent.grown.counters.values())


def test_source_that_was_there_at_the_start_counts_from_its_first_answer() -> None:
    w = window()
    assert add(w, 0, engines=[engine(steps=7)]).totals.count(metrics.STEP_TOKENS) == 0
    assert add(w, 10, engines=[engine(steps=9)]).totals.count(metrics.STEP_TOKENS) == 20


def test_source_that_comes_later_counts_whole() -> None:
    w = window()
    add(w, 0)
    recent = add(w, 10, engines=[engine(steps=7)])
    assert recent.totals.count(metrics.STEP_TOKENS) == recent.grown.count(metrics.STEP_TOKENS) == 70


def test_source_that_was_silent_at_the_start_counts_from_its_first_answer() -> None:
    w = window()
    add(w, 0, engines=[engine("a", steps=1)], silent_engines=1)
    recent = add(w, 10, engines=[engine("a", steps=2), engine("b", steps=1000)])
    assert recent.totals.count(metrics.STEP_TOKENS) == 10
    assert add(w, 20, engines=[engine("b", steps=1003)]).totals.count(metrics.STEP_TOKENS) == 40


def test_silence_of_one_kind_is_no_silence_of_the_other() -> None:
    w = window()
    add(w, 0, silent_ingresses=1)
    recent = add(w, 10, engines=[engine(steps=1)], ingresses=[ingress(classes={P0: completed(5)})])
    assert recent.totals.count(metrics.STEP_TOKENS) == 10
    assert recent.totals.count(metrics.REQUESTS) == 0


def test_restarted_source_begins_anew_and_totals_do_not_fall() -> None:
    w = window()
    add(w, 0, engines=[engine("first life", steps=10)])
    add(w, 10, engines=[engine("first life", steps=15)])
    assert add(w, 20, engines=[engine("second life", steps=2)]).totals.count(metrics.STEP_TOKENS) == 70


def test_totals_of_a_source_that_has_gone_stay() -> None:
    w = window()
    add(w, 0)
    add(w, 10, engines=[engine("a", steps=3), engine("b", steps=4)])
    for now_s in (20, 30, 500):
        assert add(w, now_s, engines=[engine("b", steps=4)]).totals.count(metrics.STEP_TOKENS) == 70


def test_source_that_comes_back_is_not_counted_twice() -> None:
    w = window()
    add(w, 0)
    add(w, 10, engines=[engine(steps=3)])
    add(w, 1000)
    assert add(w, 1010, engines=[engine(steps=5)]).totals.count(metrics.STEP_TOKENS) == 50


def test_answer_that_is_older_than_the_former_adds_nothing_and_is_not_fresh() -> None:
    w = window()
    add(w, 0)
    add(w, 10, engines=[engine(steps=5)])
    recent = add(w, 50, engines=[engine(steps=4)])
    assert recent.totals.count(metrics.STEP_TOKENS) == 50
    assert recent.engines == ()


def test_window_reaches_back_as_far_as_it_is_long() -> None:
    w = window()
    for period in range(10):
        recent = add(w, period * PERIOD_S, engines=[engine(steps=period)])
    assert recent.span_s == 30
    assert recent.grown.count(metrics.STEP_TOKENS) == 30


@pytest.mark.parametrize("jitter_s", [-4.0, 4.0])
def test_window_is_as_long_when_a_period_is_early_or_late(jitter_s: float) -> None:
    w = window()
    for period in range(9):
        recent = add(w, period * PERIOD_S, engines=[engine(steps=period)])
    recent = add(w, 90 + jitter_s, engines=[engine(steps=9)])
    assert recent.grown.count(metrics.STEP_TOKENS) == 30
    assert recent.span_s == 30 + jitter_s


def test_window_is_empty_after_a_long_pause() -> None:
    w = window()
    add(w, 0, engines=[engine(steps=1)])
    add(w, 10, engines=[engine(steps=2)])
    recent = add(w, 10_000, engines=[engine(steps=500)])
    assert recent.span_s is None
    assert not any(recent.grown.counters.values())


@pytest.mark.parametrize(("age_s", "is_fresh"), [(0, True), (25, True), (25.1, False), (1000, False)])
def test_source_is_fresh_by_the_age_that_it_told(age_s: float, is_fresh: bool) -> None:
    recent = add(window(), 0, engines=[engine(age_s=age_s)], ingresses=[ingress(age_s=age_s)])
    assert bool(recent.engines) is bool(recent.ingresses) is is_fresh


def test_source_is_stale_once_it_has_been_silent_for_long() -> None:
    w = window()
    add(w, 0, engines=[engine("a"), engine("b")])
    assert [a.snapshot.source_id for a in add(w, 20, engines=[engine("b")]).engines] == ["b", "a"]
    assert [a.snapshot.source_id for a in add(w, 30, engines=[engine("b")]).engines] == ["b"]


def test_silent_ones_are_told_for_their_period_only() -> None:
    w = window()
    assert add(w, 0, silent_engines=2, silent_ingresses=1).num_silent == 3
    assert add(w, 10).num_silent == 0


def test_memory_of_sources_that_have_gone_is_bounded() -> None:
    w = window()
    for number in range(MAX_GONE_SOURCES + 50):
        add(w, number * 100.0, engines=[engine(f"e{number}", steps=1)])
    assert len(w._engines.latest) <= MAX_GONE_SOURCES + 1
    assert w.add(collection(1e6), 1e6).totals.count(metrics.STEP_TOKENS) == (MAX_GONE_SOURCES + 49) * 10


def engines_of(told: dict[str, int]) -> list[EngineSnapshot]:
    return [engine(source_id, steps=steps) for source_id, steps in told.items()]


periods = st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 20), max_size=4), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(growths=periods, order=st.randoms(use_true_random=False), silent=st.lists(st.booleans(), min_size=12))
def test_totals_never_fall_and_the_order_of_sources_does_not_matter(
    growths: list[dict[str, int]], order: object, silent: list[bool]
) -> None:
    """Sources come, grow, are silent, and go for good, as the periods say."""
    plain, shuffled = window(), window()
    steps: dict[str, int] = {}
    before = 0.0
    for number, growth in enumerate(growths):
        for source_id, added in growth.items():
            steps[source_id] = steps.get(source_id, 0) + added
        told = engines_of({source_id: steps[source_id] for source_id in growth})
        mixed = list(told)
        order.shuffle(mixed)  # type: ignore[attr-defined]
        now_s = number * PERIOD_S
        recent = add(plain, now_s, engines=told, silent_engines=silent[number])
        same = add(shuffled, now_s, engines=mixed, silent_engines=silent[number])
        assert recent.totals == same.totals
        assert recent.grown == same.grown
        total = recent.totals.count(metrics.STEP_TOKENS)
        assert total >= before
        assert all(value >= 0 for value in recent.grown.counters.values())
        assert total <= 10 * sum(steps.values())
        before = total


@settings(max_examples=60, deadline=None)
@given(growths=periods, gone=st.sampled_from("abcd"), at=st.integers(0, 11))
def test_source_that_vanishes_takes_nothing_away(growths: list[dict[str, int]], gone: str, at: int) -> None:
    """Up to then it counts as it would have; after it, the others count as they would have without it."""
    w = window()
    add(w, -PERIOD_S)
    steps: dict[str, int] = {}
    expected: dict[str, int] = {}
    for number, growth in enumerate(growths):
        here = {i: n for i, n in growth.items() if i != gone or number < at}
        for source_id, added in here.items():
            steps[source_id] = expected[source_id] = steps.get(source_id, 0) + added
        recent = add(w, number * PERIOD_S, engines=engines_of({i: steps[i] for i in here}))
        assert recent.totals.count(metrics.STEP_TOKENS) == 10 * sum(expected.values())


def test_check_invariants_finds_totals_that_fall() -> None:
    w = window()
    add(w, 0)
    add(w, 10, engines=[engine(steps=1)])
    w._marks[0] = replace(w._marks[0], totals=w._marks[1].totals)
    w._marks[1] = replace(w._marks[1], totals=w._marks[1].totals.grown_since(w._marks[1].totals))
    with pytest.raises(ValueError, match="fallen"):
        w.check_invariants()
