from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscale.starts import StartWatch
from autoscale.view import ReplicaCounts
from slo.settings import AutoscaleSettings

SETTINGS = AutoscaleSettings(
    period_s=1, window_s=3, stale_after_s=2, settle_s=30, start_timeout_s=100, start_retry_s=50, start_retry_max_s=150
)


def watched(
    watch: StartWatch, target: int, running: int, elapsed_s: float = 10, decided: int | None = None
) -> StartWatch:
    counts = ReplicaCounts(target, running, max(0, target - running), 0, running)
    after = watch.watched(counts, target if decided is None else decided, elapsed_s, SETTINGS)
    after.check_invariants()
    return after


def lived(*looks: tuple[int, int, float]) -> StartWatch:
    """After looks of (target, running, elapsed seconds)."""
    watch = StartWatch()
    for target, running, elapsed_s in looks:
        watch = watched(watch, target, running, elapsed_s)
    return watch


def test_missing_replicas_are_on_their_way_for_a_time_and_then_given_up() -> None:
    watch = lived((1, 1, 0), (2, 1, 60))
    assert (watch.short_s, watch.is_given_up(SETTINGS)) == (60, False)
    watch = watched(watch, 2, 1, 40)
    assert watch.is_given_up(SETTINGS)
    assert (watch.failed_target, watch.num_failed, watch.retry_in_s) == (2, 1, 50)


def test_start_is_given_up_once_however_long_it_stays_missing() -> None:
    assert lived((1, 1, 0), *[(2, 1, 60)] * 10).num_failed == 1


@pytest.mark.parametrize(("num_failed", "retry_in_s"), [(1, 50), (2, 100), (3, 150), (4, 150), (60, 150)])
def test_back_off_doubles_up_to_its_cap(num_failed: int, retry_in_s: float) -> None:
    watch = StartWatch(running=1, reached=1)
    for _ in range(num_failed):
        watch = watched(watch.asked(), 2, 1, 100)
    assert (watch.num_failed, watch.retry_in_s) == (num_failed, retry_in_s)


def test_newest_replica_settles_for_a_time() -> None:
    watch = lived((1, 1, 0), (2, 1, 10), (2, 2, 10))
    assert (watch.settling_s, watch.short_s) == (30, 10)
    assert watched(watch, 2, 2, 20).settling_s == 10
    assert watched(watch, 2, 2, 30) == StartWatch(running=2, reached=2, unchanged_s=30)


def test_first_look_is_no_rise() -> None:
    assert lived((2, 2, 0)).settling_s == 0


def test_replica_that_falls_down_before_it_has_settled_was_missing_all_the_time() -> None:
    watch = lived((1, 1, 0), *[(2, 1, 10), (2, 2, 10)] * 10)
    assert watch.num_failed == 1


def test_failure_is_forgotten_when_the_target_is_reached_for_good() -> None:
    failed = lived((1, 1, 0), (2, 1, 100))
    assert watched(failed, 2, 2, 10).num_failed == 1
    assert watched(watched(failed, 2, 2, 10), 2, 2, 30).num_failed == 0
    assert watched(failed, 1, 1, 500).num_failed == 1


@pytest.mark.parametrize(
    ("looks", "reached"),
    [
        ([(3, 2, 0)], 3),
        ([(1, 1, 0), (3, 1, 1)], 1),
        ([(1, 1, 0), (3, 2, 1)], 2),
        ([(1, 1, 0), (3, 3, 1), (3, 0, 1)], 3),
        ([(3, 3, 0), (2, 2, 1), (3, 2, 1)], 2),
    ],
)
def test_reached_is_what_once_ran_of_the_target(looks: list[tuple[int, int, float]], reached: int) -> None:
    assert lived(*looks).reached == reached


def test_reached_is_not_lost_with_serves_target_in_a_redeploy() -> None:
    assert watched(lived((3, 3, 0)), 1, 1, decided=3).reached == 3


@pytest.mark.parametrize(
    ("looks", "at_rest"),
    [
        ([(2, 2, 0), (2, 2, 30)], True),
        ([(2, 2, 0), (2, 2, 29)], False),
        ([(2, 2, 0), (2, 2, 30), (2, 1, 30), (2, 1, 30)], False),
        ([(2, 2, 0), (2, 2, 30), (1, 1, 10)], False),
    ],
)
def test_fleet_is_at_rest_when_it_has_been_whole_and_unchanged(
    looks: list[tuple[int, int, float]], at_rest: bool
) -> None:
    assert lived(*looks).is_at_rest(SETTINGS) is at_rest


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.floats(0, 120), st.booleans()), max_size=60))
def test_watch_holds_together_whatever_happens(looks: list[tuple[int, int, float, bool]]) -> None:
    watch = StartWatch()
    for target, running, elapsed_s, asked in looks:
        watch = watched(watch.asked() if asked else watch, target, running, elapsed_s)
        assert watch.reached is not None
        assert watch.reached <= target
