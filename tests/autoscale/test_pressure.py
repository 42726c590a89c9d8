from dataclasses import replace
from math import inf

import pytest

from autoscale.pressure import (
    forecast_queue,
    is_over,
    is_tbt_over,
    is_ttft_over,
    latencies_and_targets,
    predicts_miss,
)
from autoscale.view import ClassView
from slo.settings import ClassTargets, LatencyTargets
from tests.autoscale.watched_fleet import GOOD, P0, P1, P2, QUEUED

TARGETS = ClassTargets()
P1_TARGETS = TARGETS.p1
"""500 ms to the first token, 100 ms between tokens."""


@pytest.mark.parametrize(
    ("ttft_s", "tbt_s", "over", "ttft_over", "tbt_over"),
    [
        (0.5, 0.1, False, False, False),
        (0.51, 0.1, True, True, False),
        (0.5, 0.11, True, False, True),
        (None, 0.11, True, False, True),
        (None, None, False, False, False),
    ],
)
def test_over_is_a_known_p99_above_its_target(
    ttft_s: float | None, tbt_s: float | None, over: bool, ttft_over: bool, tbt_over: bool
) -> None:
    view = ClassView(ttft_p99_s=ttft_s, tbt_p99_s=tbt_s)
    assert is_over(view, P1_TARGETS) == over
    assert (is_ttft_over(view, P1_TARGETS), is_tbt_over(view, P1_TARGETS)) == (ttft_over, tbt_over)


@pytest.mark.parametrize(
    "targets",
    [LatencyTargets(tbt_p99_ms=1, ttft_p99_ms=1, promised=False), LatencyTargets()],
    ids=["unpromised", "none"],
)
def test_nothing_is_over_what_was_not_promised(targets: LatencyTargets) -> None:
    assert not is_over(GOOD, targets)
    assert not is_tbt_over(GOOD, targets)
    assert not is_ttft_over(GOOD, targets)
    assert latencies_and_targets(GOOD, targets) == ()


def test_nothing_is_over_of_a_class_that_is_not_in_view() -> None:
    assert not is_over(None, P1_TARGETS)
    assert not is_tbt_over(None, P1_TARGETS)
    assert not is_ttft_over(None, P1_TARGETS)


def test_latencies_come_with_their_targets_in_seconds() -> None:
    assert latencies_and_targets(GOOD, P1_TARGETS) == ((0.1, 0.5), (0.02, 0.1))
    assert latencies_and_targets(GOOD, LatencyTargets(tbt_p99_ms=20)) == ((0.02, 0.02),)


@pytest.mark.parametrize(
    ("waiting", "starts", "arrivals", "wait_s", "drain_s"),
    [
        (10, 5.0, 3.0, 2.0, 5.0),
        (10, 5.0, 5.0, 2.0, inf),
        (10, 5.0, 9.0, 2.0, inf),
        (10, 0.0, 0.0, inf, inf),
        (0, 0.0, 1.0, 0.0, 0.0),
    ],
)
def test_forecast_is_of_the_rates_in_the_window(
    waiting: int, starts: float, arrivals: float, wait_s: float, drain_s: float
) -> None:
    view = ClassView(num_waiting=waiting, starts_per_s=starts, arrivals_per_s=arrivals)
    forecast = forecast_queue(P1, {P1: view})
    assert (forecast.num_waiting, forecast.starts_per_s) == (waiting, starts)
    assert (forecast.wait_s, forecast.drain_s) == (wait_s, drain_s)


def test_forecast_has_more_urgent_requests_ahead_and_no_less_urgent_ones() -> None:
    view = ClassView(num_waiting=10, starts_per_s=1.0, arrivals_per_s=2.0)
    classes = {P0: view, P1: view, P2: view}
    assert [forecast_queue(p, classes).num_waiting for p in (P0, P1, P2)] == [10, 20, 30]
    assert [forecast_queue(p, classes).starts_per_s for p in (P0, P1, P2)] == [1, 2, 3]


def test_miss_is_predicted_when_the_last_starts_too_late_and_the_queue_does_not_drain() -> None:
    assert predicts_miss(P1, {P1: QUEUED}, TARGETS, 60)


@pytest.mark.parametrize(
    "p1",
    [
        pytest.param(replace(QUEUED, num_waiting=0), id="nobody waits"),
        pytest.param(replace(QUEUED, num_waiting=18, starts_per_s=36), id="just in time"),
        pytest.param(replace(QUEUED, starts_per_s=2.6), id="drains in 60 s"),
    ],
)
def test_no_miss_is_predicted(p1: ClassView) -> None:
    assert not predicts_miss(P1, {P1: p1}, TARGETS, 60)


def test_no_miss_is_predicted_for_a_class_of_which_nobody_waits_though_others_do() -> None:
    assert not predicts_miss(P1, {P0: QUEUED, P1: GOOD}, TARGETS, 60)


@pytest.mark.parametrize("targets", [LatencyTargets(ttft_p99_ms=500, promised=False), LatencyTargets(tbt_p99_ms=100)])
def test_no_miss_is_predicted_without_a_promised_time_to_the_first_token(targets: LatencyTargets) -> None:
    assert not predicts_miss(P1, {P1: QUEUED}, TARGETS.model_copy(update={"p1": targets}), 60)


def test_no_miss_is_predicted_of_a_class_that_is_not_in_view() -> None:
    assert not predicts_miss(P1, {}, TARGETS, 60)
