from typing import Any

import pytest

from autoscale.policy import decide
from autoscale.view import FleetView
from sim.fleet import Fleet
from sim.replica import Replica
from sim.request import Arrival
from sim.router import InTurn
from sim.scaling import ByPromises, Scaler
from sim.scenario import Contender
from sim.simulation import simulate
from slo.priority import PriorityClass
from slo.settings import parse_settings
from tests.sim.scenes import build, new_log
from tests.sim.test_simulation import FITTED, scenario, stream

P0, P1, P2 = PriorityClass
SURGE = {
    "duration_s": 400,
    "engine": {"measured": {**FITTED, "decode_ms": 8}},
    "settings": {
        "replicas": {"num_replicas": 1},
        "engine": {"max_num_seqs": 32},
        "autoscale": {"min_replicas": 1, "max_replicas": 4},
    },
    "traffic": [{**stream("P1", 3, 50, 60), "from_s": 20}],
}


def surge(scaling: str, **fleet: Any) -> Any:
    return scenario(**SURGE, fleet={"scaling": scaling, "start_s": 20, "router": "two_choices", **fleet})


@pytest.mark.parametrize("scaling", ["expresslane", "requests"])
def test_fleet_grows_when_promises_break(scaling: str) -> None:
    alone, scaled = (simulate(surge(name, target_requests=4), Contender.EXPRESSLANE) for name in ("none", scaling))
    assert alone.goodput_per_s < 0.6 * scaled.goodput_per_s
    assert alone.replica_hours < scaled.replica_hours < 4 * 500 / 3600


def test_policy_sees_who_waits_at_the_gate_and_counts_no_refusal_as_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    views = []

    def watched(view: FleetView, *rest: Any) -> Any:
        views.append(view)
        return decide(view, *rest)

    monkeypatch.setattr("sim.scaling.decide", watched)
    settings = parse_settings({"admission": {"p2": {"max_in_flight": 1, "max_queued": 2}}})
    log = new_log()
    fleet, policy = Fleet([Replica(0, build(log))], InTurn(), log, settings), ByPromises(settings, log)
    fleet.plan(0.1, lambda: policy.target(fleet, 1))
    fleet.run([Arrival(i, 0.0, P2, 20, 50) for i in range(5)])
    policy.target(fleet, 1)
    waiting, done = (view.classes[P2] for view in views)
    assert (waiting.num_running, waiting.num_waiting) == (1, 2)
    assert (done.arrivals_per_s, done.completions_per_s) == (5 / 20, 3 / 20), "two had no room, in a window of 20 s"


class Given:
    """A policy that says what it was given, one target a period."""

    period_s = 10.0

    def __init__(self, *targets: int) -> None:
        self._targets = list(targets)

    def target(self, fleet: Fleet, target: int) -> int | None:  # noqa: ARG002
        return self._targets.pop(0) if self._targets else None


def test_scaler_starts_what_is_missing_and_takes_those_first_that_have_not_come_up() -> None:
    log = new_log()
    fleet = Fleet([Replica(0, build(log))], InTurn(), log)
    Scaler(fleet, Given(3, 2), lambda n: Replica(n, build(log), fleet.now_s, fleet.now_s + 15), 1).begin()
    fleet.run_until(12)
    assert [replica.ready_s for replica in fleet.replicas] == [0, 25, 25]
    fleet.run_until(22)
    assert [replica.gone_s for replica in fleet.replicas] == [None, None, 20]
    assert [replica.is_serving(26) for replica in fleet.replicas] == [True, True, False]
