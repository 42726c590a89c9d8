"""Bounds, restarts, redeploys, clocks, missing data, dry runs. The mutations are listed in test_policy.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscale.policy import ScalingReason
from autoscale.scaling_state import dump_state, load_state
from tests.autoscale.watched_fleet import (
    BAD,
    IDLE,
    PERIOD_S,
    QUIET_S,
    SETTLE_S,
    START_S,
    WatchedFleet,
    rules,
    settled,
)

R = ScalingReason


@pytest.mark.parametrize(
    ("target", "bounds", "expected"),
    [(5, (1, 3), 3), (1, (2, 3), 2), (0, (1, 3), 1), (3, (0, 0), 0)],
)
def test_bounds_are_honoured_at_once(target: int, bounds: tuple[int, int], expected: int) -> None:
    fleet = WatchedFleet(target=target, rules=rules(min_replicas=0))
    fleet.look(IDLE)
    fleet.rules = replace(
        fleet.rules, bounds=fleet.rules.bounds._replace(min_replicas=bounds[0], max_replicas=bounds[1])
    )
    decision = fleet.look(BAD, complete=False)
    assert (decision.target, decision.reason) == (expected, R.BOUNDS)


def restarted(fleet: WatchedFleet, **more: Any) -> WatchedFleet:
    """The same fleet under a controller that has just started, on a clock of its own."""
    state = load_state(dump_state(fleet.state))
    return WatchedFleet(
        **{"rules": fleet.rules, "target": fleet.target, "running": fleet.running, **more}, now_s=5.0, state=state
    )


def test_takes_up_where_it_was_when_the_controller_restarts_in_a_start() -> None:
    fleet = WatchedFleet()
    fleet.look_for(300, BAD)
    after = restarted(fleet)
    assert {d.reason for d in after.look_for(START_S - 300 + PERIOD_S, BAD)} == {R.STARTING}
    assert after.look(BAD).reason is R.START_GIVEN_UP


def test_finishes_the_job_when_the_controller_dies_between_keeping_its_state_and_setting_the_target() -> None:
    fleet = WatchedFleet(obeys=False)
    fleet.look(BAD)
    after = restarted(fleet)
    decision = after.look(BAD)
    assert (decision.target, decision.reason) == (2, R.RESTORED)
    assert decision.detail == "Serve's target is 1, 2 was decided"


def test_takes_up_where_it_was_when_a_redeploy_reset_the_target() -> None:
    fleet = settled(target=3)
    after = restarted(fleet, target=1, running=1)
    assert after.look().reason is R.RESTORED
    assert after.target == 3
    after.all_up()
    after.look_for(4 * QUIET_S)
    assert after.target == 1


def test_honours_bounds_that_changed_with_the_redeploy() -> None:
    fleet = settled(target=5)
    after = restarted(fleet, rules=rules(max_replicas=3), target=1)
    decision = after.look(BAD)
    assert (decision.target, decision.reason) == (3, R.BOUNDS)


def test_lower_bound_of_a_redeploy_lets_one_go_only_on_a_full_view() -> None:
    fleet = settled(target=2, rules=rules(num_replicas=2, min_replicas=2))
    fleet.look_for(QUIET_S)
    after = restarted(fleet, rules=rules())
    assert after.look(complete=False).target == 2
    assert after.look().target == 1


def test_takes_serves_target_for_its_own_when_nothing_is_remembered() -> None:
    fleet = WatchedFleet(target=4)
    assert fleet.look().target == 4
    assert fleet.state.target == 4


def test_does_not_undo_a_scale_in_that_serve_has_not_yet_followed() -> None:
    fleet = settled(target=2, obeys=False)
    while fleet.look().target == 2:
        pass
    fleet.look_for(SETTLE_S - PERIOD_S)
    fleet.target = fleet.running = 1
    assert fleet.look().reason is R.STEADY
    assert fleet.target == 1


def test_takes_over_a_higher_target_of_serves_once_it_stands() -> None:
    fleet = settled()
    fleet.target = fleet.running = 3
    fleet.look_for(SETTLE_S)
    fleet.target = fleet.running = 1
    assert (fleet.look().target, fleet.decisions[-1].reason) == (3, R.RESTORED)


def test_clock_that_jumps_counts_as_no_time() -> None:
    fleet = WatchedFleet(target=4)
    fleet.look()
    for jump_s in (36_000, 36_000, -72_000, 1e9):
        fleet.look(after_s=jump_s)
    assert fleet.changes == []
    assert fleet.state.quiet.seen_s <= 4 * fleet.rules.settings.stale_after_s


def test_clock_that_jumps_does_not_give_a_start_up() -> None:
    fleet = WatchedFleet()
    fleet.look(BAD)
    assert {fleet.look(BAD, after_s=36_000).reason for _ in range(10)} == {R.STARTING}


def test_nothing_is_decided_when_serve_cannot_be_asked() -> None:
    fleet = settled()
    decision = fleet.look(BAD, replicas=None)
    assert (decision.target, decision.reason) == (None, R.UNKNOWN)


def test_breach_scales_out_on_what_is_known_when_some_do_not_answer() -> None:
    fleet = WatchedFleet(target=2)
    assert fleet.look(BAD, complete=False, fresh=1).target == 3


def test_dry_run_tells_a_step_once_and_leaves_the_target() -> None:
    fleet = WatchedFleet(rules(mode="dry_run"))
    told = [d for d in fleet.look_for(START_S, BAD) if d.target == 2]
    assert len(told) == 1
    assert fleet.state.target == fleet.target == 1


def test_dry_run_tells_a_scale_in_once_a_quiet_time_and_regrets_nothing() -> None:
    fleet = WatchedFleet(rules(mode="dry_run"), target=2)
    told = [d for d in fleet.look_for(2 * QUIET_S) if d.target == 1]
    assert len(told) == 2
    fleet.look(BAD)
    assert fleet.state.quiet.num_doublings == 0
