"""The policy in a closed loop with a fleet that has queues, latencies and cold starts: it finds enough, and goes back.

How often the target may turn, from falling to rising, in a time T, whatever the load (q: the quiet time, Q: its cap,
g: how long a scale-in can be regretted, h: the half-life of a mistake):

    a turn that is no mistake comes later than g after a scale-in, and that after q   at most 1 + T / (q + g)
    a mistake doubles the quiet time, until it is at its cap, and is forgotten in h   at most log2(Q / q) + T / h
    a mistake at the cap follows a quiet time of Q                                    at most T / Q

Mutations that are caught here: no doubling after a mistake; a step that is always one; capacity learned while replicas
start, or while a backlog recedes; no look at whether the load recedes; a load that broke gone near again. What a loop
like this one does not catch, such as no regard to the run slots, the tests of the rules do.
"""

from __future__ import annotations

from itertools import pairwise
from math import log2
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoscale.policy import ScalingReason
from slo.settings import AutoscaleSettings, Settings, parse_settings
from tests.autoscale.simulation import ReplicaModel, SimulatedFleet

R = ScalingReason
HOUR_S = 3600.0
LOW, HIGH = 1.0, 12.0
"""Arrivals a second: one replica carries 4 with P1's targets held, so that they take one and three or four."""


def fleet_settings(**autoscale: Any) -> Settings:
    return parse_settings({"autoscale": {"min_replicas": 1, "max_replicas": 12, **autoscale}})


def square_wave(period_s: float, duty: float, low: float = LOW, high: float = HIGH) -> Any:
    return lambda now_s: high if now_s % period_s < duty * period_s else low


def step(at_s: float, low: float = LOW, high: float = HIGH) -> Any:
    return lambda now_s: high if now_s >= at_s else low


def num_turns(fleet: SimulatedFleet) -> int:
    """How often the target went up after it had gone down."""
    moves = [b > a for a, b in pairwise(fleet.targets) if a != b]
    return sum(up and not before for before, up in pairwise(moves))


def most_turns(seconds: float, numbers: AutoscaleSettings) -> float:
    """The bound of this file's docstring."""
    q, cap, g = numbers.scale_in_quiet_s, numbers.scale_in_quiet_max_s, numbers.scale_in_regret_s
    no_mistakes = 1 + seconds / (q + g)
    return no_mistakes + log2(cap / q) + seconds / numbers.quiet_half_life_s + seconds / cap


@pytest.mark.parametrize("start_s", [20, 60, 300])
@pytest.mark.parametrize("high", [5.0, 12.0, 24.0])
def test_fleet_grows_to_enough_and_goes_back(start_s: float, high: float) -> None:
    fleet = SimulatedFleet(
        fleet_settings(), lambda now_s: high if 600 <= now_s < 3 * HOUR_S else LOW, start_s=start_s, jitter=0.1
    )
    fleet.run(3 * HOUR_S)
    needed = int(high / 4) + 1
    assert needed <= fleet.target <= needed + 2
    assert not any(fleet.over[-180:]), "P1's target holds in the last half hour of the load"
    fleet.run(2 * HOUR_S)
    assert fleet.target == 1
    assert not any(fleet.over[-360:]), "and while the fleet goes back"


def test_enough_replicas_stay_while_the_load_stays() -> None:
    fleet = SimulatedFleet(fleet_settings(), step(600), jitter=0.1)
    fleet.run(12 * HOUR_S)
    assert num_turns(fleet) <= 1
    assert len(set(fleet.targets[-720:])) == 1


def test_demand_aibrix_2670_breach_through_a_five_minute_start_gives_one_step() -> None:
    fleet = SimulatedFleet(fleet_settings(), step(600, high=5.0), start_s=300)
    fleet.run(600 + 300)
    raises = [b - a for a, b in pairwise(fleet.targets) if b > a]
    assert len(raises) == 1
    assert {d.reason for d in fleet.decisions[-5:]} <= {R.STARTING, R.SETTLING}


def test_flood_is_answered_by_a_large_step() -> None:
    fleet = SimulatedFleet(fleet_settings(), step(600, high=24.0), start_s=300)
    fleet.run(700)
    assert fleet.targets[-1] == 5


def test_fleet_without_room_for_more_replicas_does_not_ask_for_ever() -> None:
    fleet = SimulatedFleet(fleet_settings(), step(600, high=24.0), max_startable=2)
    fleet.run(6 * HOUR_S)
    assert fleet.running == 2
    assert fleet.target <= 2 + fleet.settings.autoscale.max_step_replicas
    fleet.arrivals_per_s = lambda _: LOW
    fleet.run(2 * HOUR_S)
    assert fleet.target == 1


def test_fleet_takes_what_comes_free_after_it_was_given_up() -> None:
    fleet = SimulatedFleet(fleet_settings(), step(600), max_startable=1)
    fleet.run(HOUR_S)
    assert fleet.running == 1
    fleet.max_startable = 12
    fleet.run(2 * HOUR_S)
    assert fleet.running >= 3
    assert not any(fleet.over[-180:])


def test_batch_queue_alone_changes_nothing() -> None:
    fleet = SimulatedFleet(fleet_settings(), lambda _: 0.5, num_batch_waiting=10_000)
    fleet.run(2 * HOUR_S)
    assert set(fleet.targets) == {1}


def test_fleet_sleeps_without_work_and_wakes_for_the_first_request() -> None:
    quiet, again_s = 1200, 2 * HOUR_S
    fleet = SimulatedFleet(fleet_settings(min_replicas=0), lambda now_s: 1.0 if not quiet < now_s < again_s else 0.0)
    fleet.run(again_s - 100)
    assert (fleet.target, fleet.running) == (0, 0)
    fleet.run(200 + fleet.start_s + 600)
    assert fleet.running >= 1
    assert fleet.waiting < 1
    assert [d.reason for d in fleet.decisions].count(R.WAKE_UP) == 1


def test_mistakes_make_the_fleet_wait_longer() -> None:
    """A trough just longer than the quiet time, for ever: most of its scale-ins are mistakes, and become rare."""
    fleet = SimulatedFleet(fleet_settings(quiet_half_life_s=24 * HOUR_S), square_wave(900, 0.5))
    fleet.run(2 * HOUR_S)
    assert num_turns(fleet) >= 1
    assert fleet.state.quiet.num_doublings >= 1
    fleet.targets = fleet.targets[-1:]
    fleet.run(3 * HOUR_S)
    assert num_turns(fleet) == 0


@settings(max_examples=12, deadline=None)
@given(
    period_s=st.integers(6, 720).map(lambda n: 10.0 * n),
    duty=st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]),
    high=st.sampled_from([5.0, 9.0, 12.0, 30.0]),
    start_s=st.sampled_from([20.0, 120.0, 300.0]),
    seed=st.integers(0, 9),
)
@example(period_s=600.0, duty=0.5, high=12.0, start_s=60.0, seed=0)
@example(period_s=900.0, duty=0.5, high=12.0, start_s=60.0, seed=0)
@example(period_s=1800.0, duty=0.3, high=12.0, start_s=60.0, seed=0)
@example(period_s=3600.0, duty=0.5, high=30.0, start_s=300.0, seed=0)
def test_target_does_not_flap_on_a_square_wave(
    period_s: float, duty: float, high: float, start_s: float, seed: int
) -> None:
    fleet = SimulatedFleet(
        fleet_settings(), square_wave(period_s, duty, high=high), start_s=start_s, jitter=0.2, seed=seed
    )
    fleet.run(6 * HOUR_S)
    assert num_turns(fleet) <= most_turns(6 * HOUR_S, fleet.settings.autoscale)
    assert fleet.num_scale_ins <= 6 * HOUR_S / fleet.settings.autoscale.scale_in_quiet_s


@settings(max_examples=6, deadline=None)
@given(high=st.floats(1.0, 30.0), fixed_ms=st.floats(5, 30), start_s=st.sampled_from([20.0, 300.0]))
@example(high=15.4, fixed_ms=8.0, start_s=300.0)
@example(high=9.6, fixed_ms=17.0, start_s=300.0)
def test_steady_load_comes_to_rest(high: float, fixed_ms: float, start_s: float) -> None:
    """At rest nothing breaches; between a target and twice that, which is a breach, the fleet stays as it is.

    As long as it remembers what broke: a load forgotten by half, after hours, is tried on one replica fewer again.
    """
    model = ReplicaModel(tbt_fixed_s=fixed_ms / 1000)
    remembers = fleet_settings(max_replicas=24, capacity_half_life_s=96 * HOUR_S)
    fleet = SimulatedFleet(remembers, step(300, high=high), model, start_s=start_s, jitter=0.05)
    fleet.run(4 * HOUR_S)
    assert num_turns(fleet) <= 1
    assert len(set(fleet.targets[-360:])) <= 2, "one replica may still go in the last hour"
    assert not any(fleet.breached[-360:])
