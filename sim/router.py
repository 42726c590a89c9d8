"""Which replica a request goes to: the ingress' own policy over what replicas tell, and two simple ones beside it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from app.routing_load import ReplicaLoad
from app.routing_policy import CallView, RoutingRules, choose_replica
from sim.replica import Replica
from sim.request import Arrival
from sim.scenario import Contender, Scenario
from slo.settings.routing import RoutingSettings

ROUTER_ID = "ingress"


class Router(Protocol):
    """Asked by the fleet, once a request; told when one ends."""

    def choose(self, arrival: Arrival, replicas: Sequence[Replica], now_s: float) -> Replica:
        """One of `replicas`, which are not none."""
        ...

    def ended(self, arrival: Arrival, replica: Replica) -> None:
        """It is no longer with that replica."""
        ...


class InTurn:
    """Each replica in turn."""

    def __init__(self) -> None:
        self._number = 0

    def choose(self, arrival: Arrival, replicas: Sequence[Replica], now_s: float) -> Replica:  # noqa: ARG002
        self._number += 1
        return replicas[self._number % len(replicas)]

    def ended(self, arrival: Arrival, replica: Replica) -> None:
        """Nothing is counted."""


class TwoChoices:
    """The one with fewer requests under way, of two drawn by lot: what Ray Serve's router does."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, arrival: Arrival, replicas: Sequence[Replica], now_s: float) -> Replica:  # noqa: ARG002
        return min(self._random.sample(replicas, min(2, len(replicas))), key=lambda r: r.num_ongoing)

    def ended(self, arrival: Arrival, replica: Replica) -> None:
        """Nothing is counted."""


class ByClass:
    """`app.routing_policy` over what each replica has told: once in `stats_period_s`, as in the product."""

    def __init__(self, rules: RoutingRules, settings: RoutingSettings, seed: int) -> None:
        self._rules = rules
        self._settings = settings
        self._random = random.Random(seed)
        self._loads: dict[int, ReplicaLoad] = {}
        self._told_s: dict[int, float] = {}

    def choose(self, arrival: Arrival, replicas: Sequence[Replica], now_s: float) -> Replica:
        views = [self._load_of(replica, now_s).view(now_s) for replica in replicas]
        call = CallView(arrival.priority, 1, arrival.prompt_tokens)
        no_prefixes: Mapping[str, int] = {}
        choice = choose_replica(call, views, self._rules, no_prefixes, self._random.random)
        chosen = next(replica for replica in replicas if str(replica.number) == choice.ranked[0])
        self._loads[chosen.number].sent(arrival.request_id, call, now_s)
        return chosen

    def ended(self, arrival: Arrival, replica: Replica) -> None:
        self._loads[replica.number].ended(arrival.request_id)

    def _load_of(self, replica: Replica, now_s: float) -> ReplicaLoad:
        number = replica.number
        load = self._loads.get(number)
        if load is None:
            load = self._loads[number] = ReplicaLoad(str(number), ROUTER_ID, self._settings.stale_after_s)
        if now_s - self._told_s.get(number, -1e9) >= self._settings.stats_period_s:
            self._told_s[number] = now_s
            load.told(replica.routing_stats(ROUTER_ID).as_dict(), now_s)
        return load


def make_router(scenario: Scenario, contender: Contender) -> Router:
    """The one that the scenario names. Stock engines cannot be asked to make room, and the rules know it."""
    match scenario.fleet.router:
        case "in_turn":
            return InTurn()
        case "two_choices":
            return TwoChoices(scenario.seed)
    settings = scenario.settings.routing
    rules = RoutingRules(
        slots=scenario.settings.engine.max_num_seqs,
        can_preempt=contender is Contender.EXPRESSLANE and scenario.settings.scheduler.preemption.enabled,
        slow_step_s=settings.slow_step_s,
        backlog_tokens=settings.backlog_tokens,
        min_prefix_chars=settings.min_prefix_chars,
        prefix_extra_load_ratio=settings.prefix_extra_load_ratio,
    )
    return ByClass(rules, settings, scenario.seed)
