"""Replicas that do not come up. The mutations are listed in test_policy.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from autoscale.policy import ScalingReason
from tests.autoscale.watched_fleet import (
    BAD,
    GOOD,
    IDLE,
    P1,
    PERIOD_S,
    RETRY_S,
    SETTLE_S,
    START_S,
    WatchedFleet,
    broken_at_40,
    rules,
    settled,
)

R = ScalingReason


def test_gives_up_a_replica_that_does_not_come_up_once_the_breach_is_over() -> None:
    fleet = WatchedFleet()
    fleet.look(BAD)
    fleet.look_for(START_S - PERIOD_S, replace(GOOD, tbt_p99_s=0.09))
    assert fleet.target == 2
    decision = fleet.look(replace(GOOD, tbt_p99_s=0.09))
    assert (decision.target, decision.reason) == (1, R.START_GIVEN_UP)
    assert decision.detail == "1 of 2 replicas did not come up in 600 s; next try in 600 s"


def test_gives_up_nothing_on_a_part_of_the_data() -> None:
    fleet = WatchedFleet()
    fleet.look(BAD)
    fleet.look_for(2 * START_S, replace(GOOD, tbt_p99_s=0.09), complete=False)
    assert fleet.target == 2


def test_never_falls_in_a_breach_although_a_start_is_given_up() -> None:
    fleet = WatchedFleet()
    decisions = fleet.look_for(START_S + RETRY_S, BAD)
    assert [d.target for d in decisions] == [2] * len(decisions)
    assert decisions[-1].reason is R.START_GIVEN_UP
    assert decisions[-1].detail.endswith("2 replicas did not come up, 1 x; next try in 10 s")


def test_tries_again_after_a_back_off_that_doubles() -> None:
    """While the breach lasts what is missing stays in the target, and each try asks for one more."""
    fleet = WatchedFleet()
    raised_at_s = [fleet.now_s for _ in range(1200) if fleet.look(BAD).reason is R.TBT_BREACH]
    gaps_s = [b - a for a, b in pairwise(raised_at_s)]
    assert gaps_s == [START_S + RETRY_S, START_S + 2 * RETRY_S, START_S + 4 * RETRY_S]


def test_another_try_is_of_one_replica_however_many_are_needed() -> None:
    fleet = broken_at_40()
    flood = replace(BAD, num_running=64, num_waiting=900, arrivals_per_s=500)
    fleet.look_for(START_S + RETRY_S + PERIOD_S, flood, frozenset({P1}))
    targets = sorted({d.target for d in fleet.decisions if d.target is not None})
    assert targets == [1, 5]
    fleet.running = 3
    fleet.look_for(PERIOD_S, flood, frozenset({P1}))
    assert fleet.target == 6


def test_asks_for_no_more_than_a_step_that_does_not_come_up() -> None:
    fleet = WatchedFleet(rules(max_step_replicas=2, start_retry_max_s=600))
    fleet.look_for(24 * 3600, BAD)
    assert fleet.target == 3
    assert fleet.decisions[-1].detail.endswith("2 of 3 replicas do not come up")


def test_back_off_holds_for_the_next_breach_too() -> None:
    fleet = WatchedFleet()
    fleet.look(BAD)
    fleet.look_for(START_S, replace(GOOD, tbt_p99_s=0.09))
    assert fleet.target == 1
    assert {d.reason for d in fleet.look_for(RETRY_S - PERIOD_S, BAD)} == {R.START_GIVEN_UP}
    assert fleet.look(BAD).target == 2


def test_back_off_is_forgotten_when_the_replica_comes_up_after_all() -> None:
    fleet = WatchedFleet()
    fleet.look_for(START_S + 2 * PERIOD_S, BAD)
    assert fleet.decisions[-1].reason is R.START_GIVEN_UP
    fleet.all_up()
    reasons = {d.reason for d in fleet.look_for(SETTLE_S, BAD)}
    assert R.TBT_BREACH not in reasons
    assert fleet.look(BAD).reason is R.TBT_BREACH
    assert fleet.state.starts.num_failed == 0


def test_tries_another_replica_while_one_is_stuck_and_keeps_it() -> None:
    fleet = settled(target=3)
    fleet.running = 2
    fleet.look_for(START_S + RETRY_S + 2 * PERIOD_S, BAD)
    assert fleet.target == 4
    fleet.running = 3
    fleet.look_for(2 * START_S, replace(GOOD, tbt_p99_s=0.09))
    assert fleet.target == 3


def test_lost_replica_is_never_given_up() -> None:
    fleet = settled(target=3, rules=rules(min_replicas=1))
    fleet.running = 0
    fleet.look_for(4 * START_S, IDLE)
    assert fleet.target == 3


def test_replica_that_falls_down_again_and_again_is_given_up() -> None:
    fleet = WatchedFleet()
    fleet.look(BAD)
    for _ in range(50):
        fleet.running = 2
        fleet.look_for(20, BAD)
        fleet.running = 1
        fleet.look_for(20, BAD)
    assert fleet.state.starts.num_failed == 1
    assert fleet.target == 3
