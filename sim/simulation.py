"""Runs a scenario with one contender, and says what it showed."""

from __future__ import annotations

from collections.abc import Callable

from sim.contenders import build_engine
from sim.figures import RunFigures, figures_of
from sim.fleet import Fleet
from sim.replica import Replica
from sim.request import Arrival
from sim.router import make_router
from sim.scaling import ByPromises, Scaler, ScalingPolicy
from sim.scenario import Contender, Crash, Scenario
from sim.token_log import TokenLog
from sim.traffic import arrivals_of
from slo.priority import PriorityClass


def simulate(
    scenario: Scenario,
    contender: Contender,
    arrivals: list[Arrival] | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> RunFigures:
    """The figures of one run, to the end of its last request.

    Args:
        arrivals: instead of the scenario's own, which are read anew each time.
        progress: told the virtual time of each arrival.

    Raises:
        OSError, ValueError: a trace cannot be read.
    """
    arrivals = arrivals_of(scenario) if arrivals is None else arrivals
    log = new_log(scenario)

    def new_replica(number: int, asked_s: float = 0.0, start_s: float = 0.0) -> Replica:
        return Replica(number, build_engine(scenario, contender, log), asked_s, asked_s + start_s)

    num_replicas = scenario.settings.replicas.num_replicas
    gate = scenario.settings if scenario.fleet.gate and contender is Contender.EXPRESSLANE else None
    fleet = Fleet(map(new_replica, range(num_replicas)), make_router(scenario, contender), log, gate)
    start_s = scenario.fleet.start_s
    for crash in scenario.crashes:
        fleet.plan(crash.at_s, _crash(fleet, crash, scenario, lambda n: new_replica(n, fleet.now_s, start_s)))
    if (policy := _policy_of(scenario, log)) is not None:
        Scaler(fleet, policy, lambda n: new_replica(n, fleet.now_s, start_s), num_replicas).begin()
    fleet.run(arrivals, progress)
    end_s = max(scenario.duration_s, fleet.now_s)
    return figures_of(
        log,
        scenario.settings.scheduler.targets,
        scenario.duration_s,
        sum(replica.engine.busy_s for replica in fleet.replicas),
        sum((end_s if r.gone_s is None else r.gone_s) - r.asked_s for r in fleet.replicas),
        sum(replica.engine.num_steps for replica in fleet.replicas),
    )


def new_log(scenario: Scenario) -> TokenLog:
    """An empty one, that knows the scenario's targets."""
    targets = scenario.settings.scheduler.targets

    def late_s(priority: PriorityClass) -> float | None:
        target_ms = targets.of(priority).tbt_p99_ms
        return None if target_ms is None else target_ms / 1e3

    return TokenLog({c: late_s(c) for c in PriorityClass}, scenario.fleet.front_ms / 1e3)


def _policy_of(scenario: Scenario, log: TokenLog) -> ScalingPolicy | None:
    match scenario.fleet.scaling:
        case "none":
            return None
        case "expresslane":
            return ByPromises(scenario.settings, log)
        case "requests":
            from sim.serve_scaling import ByRequests

            return ByRequests(scenario.settings.replica_bounds, scenario.fleet.target_requests)


def _crash(fleet: Fleet, crash: Crash, scenario: Scenario, new_replica: Callable[[int], Replica]) -> Callable[[], None]:
    def restart() -> None:
        fleet.add_replica(new_replica(len(fleet.replicas)))

    def happen() -> None:
        if crash.replica >= len(fleet.replicas) or fleet.replicas[crash.replica].gone_s is not None:
            return
        fleet.crash(fleet.replicas[crash.replica], scenario.fleet.crash_found_s, scenario.fleet.resumes)
        if crash.restarts:
            fleet.plan(fleet.now_s + scenario.fleet.restart_s, restart)

    return happen
