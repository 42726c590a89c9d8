"""Fewer replicas, down to none, and the first one again. The mutations are listed in test_policy.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from autoscale.policy import ScalingReason
from autoscale.view import ClassView
from tests.autoscale.watched_fleet import (
    BAD,
    BATCH_QUEUE,
    GOOD,
    IDLE,
    P1,
    P2,
    PERIOD_S,
    QUIET_S,
    REGRET_S,
    RETRY_S,
    SETTLE_S,
    START_S,
    ZERO_S,
    WatchedFleet,
    broken_at_40,
    rules,
    scaled_in,
    settled,
)

R = ScalingReason


def test_scales_in_one_at_a_time_after_the_quiet_time() -> None:
    fleet = settled(target=3)
    fleet.look_for(2 * QUIET_S)
    assert fleet.changes == [(2, R.SPARE), (1, R.SPARE)]
    changed = [i for i, (a, b) in enumerate(pairwise(fleet.decisions)) if a.target != b.target]
    assert (changed[1] - changed[0]) * PERIOD_S == QUIET_S


def test_scale_in_says_what_it_waits_for() -> None:
    fleet = settled(target=2)
    assert fleet.decisions[-1].detail == "one fewer would have done for 70 s, of 300 s"


@pytest.mark.parametrize(
    ("p1", "why"),
    [
        pytest.param(replace(GOOD, tbt_p99_s=0.04), "P1: P99 0.04 s would grow to 0.1 s, target 0.1 s", id="TBT"),
        pytest.param(replace(GOOD, ttft_p99_s=0.2), "P1: P99 0.2 s would grow to 0.5 s, target 0.5 s", id="TTFT"),
        pytest.param(replace(GOOD, num_running=50), "50 in flight of promised classes; 44.8 slots remain", id="slots"),
        pytest.param(replace(GOOD, tbt_p99_s=0.15), "P1: a target is missed, or will be", id="over"),
        pytest.param(replace(GOOD, num_waiting=50, arrivals_per_s=2), "P1: a target is missed, or will be", id="queue"),
        pytest.param(
            ClassView(num_running=50, starts_per_s=0.0), "50 in flight of promised classes", id="slots, and silent"
        ),
        pytest.param(
            ClassView(num_running=15, starts_per_s=0.0), "P1: requests in flight, and nothing is heard", id="silent"
        ),
    ],
)
def test_scale_in_waits_when_one_fewer_would_not_do(p1: ClassView, why: str) -> None:
    """After a look at a load of nearly nothing, with which latencies are 0.02 and 0.1 s."""
    fleet = WatchedFleet(target=2)
    fleet.look(replace(GOOD, num_running=1, arrivals_per_s=0.1))
    decisions = fleet.look_for(20, p1)
    assert {d.reason for d in decisions} == {R.STEADY}
    assert {d.detail.startswith(why) for d in decisions} == {True}
    fleet.look_for(2 * QUIET_S, p1)
    assert fleet.target >= 2


def test_scale_in_ignores_answers_that_stream_nothing_once_they_end() -> None:
    fleet = WatchedFleet(target=2)
    fleet.look_for(QUIET_S, replace(GOOD, ttft_p99_s=None, tbt_p99_s=None))
    assert fleet.target == 1


@pytest.mark.parametrize(
    "missing",
    [{"complete": False}, {"fresh": 1}, {"slots_per_replica": None}, {"replicas": None}],
    ids=lambda missing: next(iter(missing)),
)
def test_missing_data_stops_the_quiet_time_and_does_not_set_it_back(missing: dict[str, Any]) -> None:
    fleet = WatchedFleet(target=2)
    fleet.look_for(QUIET_S - 2 * PERIOD_S)
    fleet.look_for(2 * QUIET_S, **missing)
    assert fleet.target == 2
    fleet.look()
    assert fleet.target == 2
    fleet.look()
    assert fleet.target == 1


def test_quiet_time_begins_anew_when_a_target_was_missed() -> None:
    fleet = WatchedFleet(target=2)
    fleet.look_for(QUIET_S - PERIOD_S)
    fleet.look(replace(GOOD, tbt_p99_s=0.11))
    fleet.look_for(QUIET_S - PERIOD_S)
    assert fleet.target == 2
    fleet.look()
    assert fleet.target == 1


def test_quiet_time_begins_anew_while_an_alert_has_yet_to_clear() -> None:
    fleet = WatchedFleet(target=2)
    fleet.look_for(QUIET_S - PERIOD_S)
    assert fleet.look(GOOD, frozenset({P1})).reason is R.CLEARING
    fleet.look_for(QUIET_S - PERIOD_S)
    assert fleet.target == 2


def test_breach_of_an_unpromised_class_holds_no_scale_in_up() -> None:
    fleet = WatchedFleet(target=2)
    fleet.look_for(QUIET_S, GOOD, frozenset({P2}), p2=replace(BATCH_QUEUE, tbt_p99_s=0.9))
    assert fleet.target == 1


def test_batch_work_neither_holds_a_scale_in_up_nor_asks_for_it() -> None:
    fleet = WatchedFleet(target=2)
    fleet.look_for(QUIET_S, p2=BATCH_QUEUE)
    assert fleet.target == 1


@pytest.mark.parametrize(
    ("p1", "why"),
    [
        pytest.param({"num_running": 18, "arrivals_per_s": 0.1}, "P1: 18 in flight a replica; it broke at", id="load"),
        pytest.param({"num_running": 2, "arrivals_per_s": 0.9}, "P1: 0.9 arrivals a second a replica; it", id="rate"),
    ],
)
def test_scale_in_stays_clear_of_a_load_that_broke_by_the_headroom(p1: dict[str, Any], why: str) -> None:
    """One replica broke at some 21 in flight, and when it was served one a second."""
    fleet = broken_at_40()
    fleet.target = fleet.running = 2
    fleet.look_for(2 * QUIET_S, replace(GOOD, **p1))
    assert fleet.target == 2
    assert fleet.decisions[-1].detail.startswith(why)


def test_scale_in_goes_down_to_a_load_that_was_seen_to_hold() -> None:
    """0.06 s is estimated to grow beyond 70 % of the target; but one replica has carried this load before."""
    held = replace(GOOD, tbt_p99_s=0.06, num_running=20)
    stranger = WatchedFleet(target=2)
    stranger.look()
    stranger.look_for(2 * QUIET_S, held)
    assert stranger.target == 2
    fleet = settled()
    fleet.look_for(300, replace(held, num_running=24, arrivals_per_s=1.2, completions_per_s=1.2))
    fleet.target = fleet.running = 2
    fleet.look_for(QUIET_S + SETTLE_S + PERIOD_S, held)
    assert fleet.target == 1


def test_breach_soon_after_a_scale_in_doubles_the_quiet_time() -> None:
    fleet = scaled_in()
    fleet.look_for(REGRET_S - PERIOD_S)
    fleet.look(BAD)
    fleet.all_up()
    before = len(fleet.decisions)
    while fleet.target == 2:
        fleet.look()
    assert (len(fleet.decisions) - before) * PERIOD_S == 2 * QUIET_S


def test_breach_long_after_a_scale_in_does_not() -> None:
    fleet = scaled_in()
    fleet.look_for(REGRET_S + PERIOD_S)
    fleet.look(BAD)
    assert fleet.state.quiet.num_doublings == 0


def test_does_not_scale_in_below_the_fewest() -> None:
    fleet = WatchedFleet(rules(num_replicas=2, min_replicas=2), target=2)
    fleet.look_for(10 * QUIET_S, IDLE)
    assert fleet.changes == []
    assert fleet.decisions[-1].detail == "as few as may be"


def test_demand_ray_64725_target_never_falls_during_a_breach() -> None:
    """Everything that lowers a target at other times is due here: room, a quiet time long over, a start given up."""
    fleet = settled(target=3)
    fleet.look_for(QUIET_S - SETTLE_S - 3 * PERIOD_S)
    fleet.running = 1
    for seconds in (START_S, RETRY_S, QUIET_S, 3600):
        targets = [d.target for d in fleet.look_for(seconds, BAD, num_without_replica=0)]
        assert all(a is not None and b is not None and a <= b for a, b in pairwise([3, *targets]))


def test_demand_ray_61551_work_that_has_ended_holds_no_replica() -> None:
    """After refusals and a drain nothing is in flight: what is left over from them in a window holds nothing up."""
    fleet = WatchedFleet(rules(min_replicas=0), target=2)
    fleet.look_for(120, replace(BAD, completions_per_s=0.0, arrivals_per_s=50))
    assert fleet.target > 1
    fleet.all_up()
    fleet.look_for(fleet.target * QUIET_S + ZERO_S + SETTLE_S, IDLE)
    assert fleet.target == 0


def test_demand_dynamo_13559_scale_in_takes_one_replica_and_waits_while_streams_run() -> None:
    """Streams of a minute on every replica: one goes at a time, a quiet time apart, so that its streams can end."""
    fleet = WatchedFleet(target=4)
    streams = replace(GOOD, num_running=8, arrivals_per_s=0.1, completions_per_s=0.1)
    fleet.look_for(4 * QUIET_S, streams)
    falls = [a.target - b.target for a, b in pairwise(fleet.decisions) if a.target != b.target]  # type: ignore[operator]
    assert falls == [1, 1, 1]


def zero_fleet(**more: Any) -> WatchedFleet:
    return WatchedFleet(rules(min_replicas=0), **more)


def test_last_replica_goes_when_there_is_no_work() -> None:
    fleet = zero_fleet()
    fleet.look_for(ZERO_S - PERIOD_S, IDLE)
    assert fleet.target == 1
    decision = fleet.look(IDLE)
    assert (decision.target, decision.reason) == (0, R.IDLE)


def test_last_replica_stays_when_zero_is_not_allowed() -> None:
    fleet = WatchedFleet()
    fleet.look_for(4 * ZERO_S, IDLE)
    assert fleet.target == 1


def test_last_replica_stays_while_a_promised_class_has_asked_lately() -> None:
    fleet = zero_fleet()
    fleet.look_for(ZERO_S - PERIOD_S, IDLE)
    fleet.look(replace(GOOD, num_running=0, arrivals_per_s=0.1))
    fleet.look_for(ZERO_S - PERIOD_S, IDLE)
    assert fleet.target == 1
    fleet.look(IDLE)
    assert fleet.target == 0


def test_time_that_was_not_seen_in_full_does_not_count_as_time_without_the_promised_classes() -> None:
    fleet = zero_fleet()
    fleet.look_for(ZERO_S - PERIOD_S, IDLE)
    fleet.look_for(ZERO_S, IDLE, complete=False)
    assert fleet.state.promised_gone_s == ZERO_S - PERIOD_S
    assert fleet.target == 1


@pytest.mark.parametrize(
    "p2", [ClassView(num_swapped=1), ClassView(num_waiting=1), ClassView(arrivals_per_s=0.1)], ids=str
)
def test_last_replica_stays_while_anything_is_in_flight(p2: ClassView) -> None:
    fleet = zero_fleet()
    fleet.look_for(4 * ZERO_S, IDLE, p2=p2)
    assert fleet.target == 1
    fleet.look_for(QUIET_S, IDLE)
    assert fleet.target == 0


@pytest.mark.parametrize(
    "arrival", [{"num_without_replica": 1}, {"p2": ClassView(arrivals_per_s=0.1)}], ids=["held at the ingress", "seen"]
)
def test_request_wakes_a_fleet_without_replicas(arrival: dict[str, Any]) -> None:
    fleet = zero_fleet(target=0)
    assert fleet.look(IDLE).target == 0
    decision = fleet.look(IDLE, **arrival)
    assert (decision.target, decision.reason) == (1, R.WAKE_UP)


def test_waking_replica_is_not_given_up_while_someone_waits() -> None:
    fleet = zero_fleet(target=0)
    fleet.look_for(START_S + 2 * PERIOD_S, IDLE, num_without_replica=1)
    assert fleet.target == 1
    fleet.look(IDLE)
    assert fleet.target == 0
    assert fleet.look(IDLE, num_without_replica=1).reason is R.START_GIVEN_UP
