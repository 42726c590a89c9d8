"""The scaling rules one by one. Each, and a test that fails when it is taken out, by hand:

    rule                                              test
    an operator's bound comes first                   bounds_are_honoured_at_once
    a target that Serve has lost is restored          takes_up_where_it_was_when_a_redeploy_reset_the_target
    Serve's higher target is taken over               takes_over_a_higher_target_of_serves_once_it_stands
    ... but not at once                               does_not_undo_a_scale_in_that_serve_has_not_yet_followed
    only promised classes scale                       unpromised_class_is_no_reason_to_scale_out
    a queue must predict a miss for some periods      queue_growth_scales_out_in_its_third_period
    ... and not drain by itself                       queue_is_no_reason (drains by itself)
    first tokens must be late for some periods        late_first_tokens_scale_out_when_they_last
    ... and for enough requests                       few_late_first_tokens_are_no_reason
    ... and not whatever the load                     late_first_tokens_are_no_reason_where_fewer_requests_...
    ... nor where a replica has one request           late_first_tokens_are_no_reason_where_each_replica_has_one
    a start has its time                              one_step_while_replicas_start_for_five_minutes
    a new replica has its chance                      adds_no_more_until_the_new_replica_has_had_its_chance
    an alert that has yet to clear adds nothing       adds_nothing_when_the_alert_only_has_yet_to_clear
    nor does a load that recedes                      adds_nothing_when_the_load_recedes_by_itself
    a step is as large as measured                    step_is_as_large_as_the_measured_shortfall
    ... up to a cap                                   step_is_capped
    ... and to a bound                                step_ends_at_the_most_that_are_allowed
    a start that fails is given up                    gives_up_a_replica_that_does_not_come_up
    ... not in a breach                               never_falls_in_a_breach_although_a_start_is_given_up
    ... not what once ran                             lost_replica_is_never_given_up
    ... and is tried again later                      tries_again_after_a_back_off_that_doubles
    ... also where others stay missing                tries_another_replica_while_one_is_stuck
    ... with one, whatever is needed                  another_try_is_of_one_replica_however_many_are_needed
    ... few at a time                                 asks_for_no_more_than_a_step_that_does_not_come_up
    a scale-in needs the quiet time                   scales_in_one_at_a_time_after_the_quiet_time
    ... seen in full                                  missing_data_stops_the_quiet_time
    ... and no trouble in it                          quiet_time_begins_anew_when_a_target_was_missed
    ... nor an alert that has yet to clear            quiet_time_begins_anew_while_an_alert_has_yet_to_clear
    ... and room at that moment                       lower_bound_of_a_redeploy_lets_one_go_only_on_a_full_view
    a load that broke is kept clear of                scale_in_stays_clear_of_a_load_that_broke_by_the_headroom
    a load that held is fine                          scale_in_goes_down_to_a_load_that_was_seen_to_hold
    else latencies, slots and silence speak           scale_in_waits_when_one_fewer_would_not_do
    a regretted scale-in doubles it                   breach_soon_after_a_scale_in_doubles_the_quiet_time
    zero needs the promised classes gone              last_replica_stays_while_a_promised_class_has_asked_lately
    ... by what was seen in full                      time_that_was_not_seen_in_full_does_not_count
    ... and nothing in flight                         last_replica_stays_while_anything_is_in_flight
    a request wakes the fleet                         request_wakes_a_fleet_without_replicas
    time that nobody watched does not count           clock_that_jumps_counts_as_no_time
    a dry run leaves the target where it is           dry_run_tells_a_step_once_and_leaves_the_target

They are in this file and in test_policy_starts.py, test_policy_scale_in.py and test_policy_restarts.py. To ask for a
scale-in before the breach changes nothing: a breach leaves no room, either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscale.policy import ScalingReason
from autoscale.view import ClassView
from tests.autoscale.watched_fleet import (
    BAD,
    BATCH_QUEUE,
    GOOD,
    IDLE,
    LATE,
    P0,
    P1,
    P2,
    PERIOD_S,
    QUEUED,
    SETTLE_S,
    WatchedFleet,
    broken_at_40,
    rules,
    settled,
)

R = ScalingReason


TTFT_FOR_BATCH = {"p2": {"ttft_p99_ms": 600_000, "promised": True}}


def test_breach_adds_one_replica_while_nothing_is_known_of_capacity() -> None:
    fleet = WatchedFleet()
    decision = fleet.look(BAD)
    assert (decision.target, decision.reason) == (2, R.TBT_BREACH)
    assert decision.detail == "P1: TBT P99 250 ms, target 100 ms"


def test_breach_of_the_most_urgent_class_gives_the_reason_when_several_break() -> None:
    p0 = replace(GOOD, tbt_p99_s=0.05)
    assert WatchedFleet().look(BAD, frozenset({P0, P1}), p0=p0).detail.startswith("P0: TBT P99 50 ms")


def test_latency_over_its_target_is_no_reason_as_long_as_no_alert_fires() -> None:
    fleet = WatchedFleet()
    fleet.look_for(600, BAD, frozenset())
    assert not fleet.changes


@pytest.mark.parametrize(
    ("breaches", "p2"),
    [(frozenset({P2}), replace(GOOD, tbt_p99_s=0.9)), (frozenset(), BATCH_QUEUE)],
    ids=["its TBT alert", "its queue"],
)
def test_unpromised_class_is_no_reason_to_scale_out(breaches: frozenset[Any], p2: ClassView) -> None:
    fleet = WatchedFleet()
    fleet.look_for(600, IDLE, breaches, p2=p2)
    assert not fleet.changes


def test_batch_queue_scales_out_when_batch_is_promised_a_time_to_start() -> None:
    fleet = WatchedFleet(rules(targets=TTFT_FOR_BATCH))
    fleet.look_for(30, IDLE, p2=BATCH_QUEUE)
    assert fleet.changes == [(2, R.QUEUE_GROWTH)]


def test_queue_growth_scales_out_in_its_third_period() -> None:
    fleet = WatchedFleet()
    fleet.look()
    assert [d.reason for d in fleet.look_for(30, QUEUED)] == [R.STEADY, R.STEADY, R.QUEUE_GROWTH]
    assert fleet.decisions[-1].detail == "P1: 36 wait and 1 start a second, so that the last starts in 36 s"


def test_queue_growth_begins_anew_when_a_period_is_without_it() -> None:
    fleet = WatchedFleet()
    for _ in range(10):
        fleet.look_for(20, QUEUED)
        fleet.look()
    assert not fleet.changes


def test_queue_is_forecast_from_completions_when_starts_are_not_known() -> None:
    fleet = WatchedFleet()
    fleet.look_for(30, replace(QUEUED, starts_per_s=None, completions_per_s=2, arrivals_per_s=3))
    assert fleet.decisions[-1].detail == "P1: 36 wait and 2 start a second, so that the last starts in 18 s"


@pytest.mark.parametrize(
    "p1",
    [
        pytest.param(replace(QUEUED, num_waiting=3, starts_per_s=10, arrivals_per_s=11), id="starts within the target"),
        pytest.param(replace(QUEUED, starts_per_s=3, arrivals_per_s=2), id="drains by itself"),
        pytest.param(replace(QUEUED, num_waiting=0, starts_per_s=0), id="nobody waits"),
    ],
)
def test_queue_is_no_reason(p1: ClassView) -> None:
    fleet = WatchedFleet()
    fleet.look_for(120, p1)
    assert not fleet.changes


def test_queue_of_a_more_urgent_class_counts_as_it_starts_first() -> None:
    p0 = replace(QUEUED, num_waiting=5, starts_per_s=0.5, arrivals_per_s=2)
    p1 = replace(QUEUED, num_waiting=1, starts_per_s=0.5, arrivals_per_s=0.5)
    fleet = WatchedFleet(rules(targets={"p0": {"ttft_p99_ms": None}}))
    assert fleet.look_for(30, p1, p0=p0)[-1].detail.startswith("P1: 6 wait and 1 start a second")


def test_queue_where_nothing_starts_predicts_a_miss() -> None:
    fleet = WatchedFleet()
    assert fleet.look_for(30, replace(QUEUED, starts_per_s=0.0))[-1].reason is R.QUEUE_GROWTH


def test_late_first_tokens_scale_out_when_they_last() -> None:
    fleet = settled()
    assert [d.reason for d in fleet.look_for(30, LATE)] == [R.STEADY, R.STEADY, R.TTFT_BREACH]
    assert fleet.decisions[-1].detail == "P1: TTFT P99 800 ms, target 500 ms"
    assert fleet.changes == [(3, R.TTFT_BREACH)], "as many as the load needs by what it has just shown"


def test_few_late_first_tokens_are_no_reason() -> None:
    """A P99 of a dozen requests is the slowest of them: what counts is a hundred of them in a row."""
    fleet = settled()
    few = replace(LATE, arrivals_per_s=0.4, completions_per_s=0.4, starts_per_s=0.4)
    fleet.look_for(240, few)
    assert not fleet.changes
    fleet.look_for(10, few)
    assert fleet.changes == [(2, R.TTFT_BREACH)]


def test_late_first_tokens_are_no_reason_where_fewer_requests_did_not_make_them_earlier() -> None:
    """What takes so long is the prompts themselves; the fleet would grow to its bound, and be none the wiser."""
    fleet = WatchedFleet()
    fleet.look_for(600, replace(LATE, num_running=2))
    fleet.look_for(600, LATE)
    assert not fleet.changes


def test_late_first_tokens_are_no_reason_where_each_replica_has_one() -> None:
    fleet = settled()
    fleet.look_for(600, replace(LATE, num_running=1))
    assert not fleet.changes


def test_late_first_tokens_are_no_reason_while_the_load_recedes_by_itself() -> None:
    fleet = settled()
    fleet.look_for(30, BAD, frozenset())
    assert {d.reason for d in fleet.look_for(60, replace(LATE, arrivals_per_s=8))} == {R.CLEARING}


def test_demand_aibrix_2670_one_step_while_replicas_start_for_five_minutes() -> None:
    fleet = WatchedFleet()
    decisions = fleet.look_for(300, BAD)
    assert fleet.changes == [(2, R.TBT_BREACH)]
    assert {d.reason for d in decisions[1:]} == {R.STARTING}
    fleet.all_up()
    fleet.look_for(600)
    assert fleet.changes == [(2, R.TBT_BREACH), (1, R.SPARE)]


def test_adds_no_more_until_the_new_replica_has_had_its_chance() -> None:
    fleet = WatchedFleet()
    fleet.look_for(60, BAD)
    fleet.all_up()
    reasons = [d.reason for d in fleet.look_for(SETTLE_S + PERIOD_S, BAD)]
    assert reasons == [R.SETTLING] * (SETTLE_S // 10) + [R.TBT_BREACH]


@pytest.mark.parametrize("tbt_p99_s", [0.09, None], ids=["holds again", "not known"])
def test_adds_nothing_when_the_alert_only_has_yet_to_clear(tbt_p99_s: float | None) -> None:
    fleet = WatchedFleet()
    decision = fleet.look(replace(BAD, tbt_p99_s=tbt_p99_s), frozenset({P1}))
    assert (decision.target, decision.reason) == (1, R.CLEARING)


def test_adds_nothing_when_the_load_recedes_by_itself() -> None:
    fleet = settled()
    fleet.look_for(30, BAD, frozenset())
    receding = replace(BAD, arrivals_per_s=1, completions_per_s=1.5)
    assert fleet.look(receding, frozenset({P1})).reason is R.CLEARING
    assert fleet.look(replace(receding, completions_per_s=1.1), frozenset({P1})).reason is R.TBT_BREACH


def test_step_is_as_large_as_the_measured_shortfall() -> None:
    fleet = broken_at_40()
    broke = fleet.state.records[P1.level].in_flight.band.broke
    assert broke is not None
    assert 2 < 43 / (0.7 * broke) <= 3
    crowded = replace(BAD, num_running=43, arrivals_per_s=20)
    assert fleet.look(crowded, frozenset({P1})).target == 3


def test_step_follows_the_arrivals_where_a_backlog_makes_the_load_look_larger() -> None:
    """900 wait, which is some 50 replicas' load; a second, though, not twice as many come as one was seen to serve."""
    fleet = broken_at_40()
    backlog = replace(BAD, num_running=64, num_waiting=900, arrivals_per_s=1.3, completions_per_s=1)
    assert fleet.look(backlog, frozenset({P1})).target == 2


def test_step_is_capped() -> None:
    fleet = broken_at_40()
    flood = replace(BAD, num_running=64, num_waiting=900, arrivals_per_s=500)
    assert fleet.look(flood, frozenset({P1})).target == 1 + fleet.rules.settings.max_step_replicas


def test_step_ends_at_the_most_that_are_allowed() -> None:
    fleet = broken_at_40()
    fleet.rules = rules(max_replicas=3)
    flood = replace(BAD, num_running=64, num_waiting=900, arrivals_per_s=500)
    assert fleet.look(flood, frozenset({P1})).target == 3


def test_no_more_are_added_than_are_allowed() -> None:
    fleet = WatchedFleet(rules(max_replicas=2))
    fleet.look(BAD)
    fleet.all_up()
    assert {d.reason for d in fleet.look_for(300, BAD)} == {R.AT_MOST}
    assert fleet.target == 2
