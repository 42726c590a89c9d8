"""What holds of every choice, whatever the fleet looks like; and a simulation of several ingress processes at once.

Mutations tried by hand, each found by a test here: the mildest wait not first; a prefix that changes the wait; own
requests not counted until the next telling.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing_load import ReplicaLoad
from app.routing_policy import CallView, ReplicaView, RoutingRules, ToldView, at_least, choose_replica
from slo.priority import PriorityClass
from slo.routing import NOTHING, ByClass, RoutingStats, plus

P0, P1, P2 = PriorityClass
SLOTS = 4
RULES = RoutingRules(SLOTS, True, 0.05, 2048, 256, 0.25)
COUNTS = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
TOLD = st.builds(
    ToldView,
    others=COUNTS.map(at_least),
    free_kv_tokens=st.sampled_from([0, 50, 10_000]),
    unread_tokens=COUNTS.map(lambda counts: at_least((counts[0] * 1000, counts[1] * 1000, counts[2] * 1000))),
    step_s=st.sampled_from([None, 0.01, 0.2]),
    is_serving=st.booleans(),
)


@st.composite
def fleets(draw: st.DrawFn) -> list[ReplicaView]:
    number = draw(st.integers(1, 6))
    return [ReplicaView(f"r{i}", draw(COUNTS.map(at_least)), draw(st.none() | TOLD)) for i in range(number)]


def told_of(replica: ReplicaView) -> ToldView:
    assert replica.told is not None
    return replica.told


def has_free_slot(replica: ReplicaView, call: CallView) -> bool:
    told = told_of(replica)
    return replica.own[-1] + told.others[-1] < SLOTS and call.prompt_tokens <= told.free_kv_tokens


def backlog_of(replica: ReplicaView, level: int) -> float:
    told = told_of(replica)
    return told.unread_tokens[level] // RULES.backlog_tokens if replica.own[-1] + told.others[-1] else 0


calls = st.builds(CallView, st.sampled_from(PriorityClass), st.just(1), st.sampled_from([10, 100, 5000]))
prefixes = st.dictionaries(st.sampled_from([f"r{i}" for i in range(6)]), st.integers(1, 5000))


@given(calls, fleets(), prefixes, st.integers(0, 10))
def test_every_serving_replica_is_ranked_once(
    call: CallView, fleet: list[ReplicaView], prefix: dict[str, int], seed: int
) -> None:
    choice = choose_replica(call, fleet, RULES, prefix, random.Random(seed).random)
    serving = [r.replica_id for r in fleet if r.told is None or r.told.is_serving]
    assert sorted(choice.ranked) == sorted(serving)


@given(calls, fleets(), prefixes, st.integers(0, 10))
def test_nobody_waits_where_another_replica_has_a_free_slot(
    call: CallView, fleet: list[ReplicaView], prefix: dict[str, int], seed: int
) -> None:
    fleet = [r for r in fleet if r.told is not None]
    choice = choose_replica(call, fleet, RULES, prefix, random.Random(seed).random)
    free = {r.replica_id for r in fleet if told_of(r).is_serving and has_free_slot(r, call)}
    if free:
        assert choice.ranked[0] in free


@given(fleets(), prefixes, st.integers(0, 10))
def test_urgent_request_does_not_queue_where_batch_work_could_yield(
    fleet: list[ReplicaView], prefix: dict[str, int], seed: int
) -> None:
    fleet = [r for r in fleet if r.told is not None]
    chosen = choose_replica(CallView(P0), fleet, RULES, prefix, random.Random(seed).random).ranked[:1]
    num_urgent = {r.replica_id: r.own[0] + told_of(r).others[0] for r in fleet if told_of(r).is_serving}
    if any(num < SLOTS for num in num_urgent.values()):
        assert num_urgent[chosen[0]] < SLOTS


@given(calls, fleets(), prefixes, st.integers(0, 10))
def test_prefix_changes_no_wait(call: CallView, fleet: list[ReplicaView], prefix: dict[str, int], seed: int) -> None:
    fleet = [r for r in fleet if r.told is not None and r.told.is_serving]
    if not fleet:
        return
    by_id = {r.replica_id: r for r in fleet}
    with_it, without = (
        by_id[choose_replica(call, fleet, RULES, p, random.Random(seed).random).ranked[0]] for p in (prefix, {})
    )
    level = call.priority.level
    assert has_free_slot(with_it, call) == has_free_slot(without, call)
    assert backlog_of(with_it, level) == backlog_of(without, level)
    ahead, before = (r.own[level] + told_of(r).others[level] for r in (with_it, without))
    if not has_free_slot(with_it, call):
        assert ahead <= before + RULES.prefix_extra_load_ratio * SLOTS


class Ingress:
    """A router's own part of the work, for the simulation: it sees the others' requests by what replicas told last."""

    def __init__(self, name: str, replicas: list[str], seed: int) -> None:
        self.name = name
        self.loads = {r: ReplicaLoad(r, name, stale_after_s=3.0) for r in replicas}
        self._lots = random.Random(seed)

    def route(self, now_s: float) -> str:
        views = [load.view(now_s) for load in self.loads.values()]
        chosen = choose_replica(CallView(P0), views, RULES, {}, self._lots.random).ranked[0]
        self.loads[chosen].sent("id", CallView(P0), now_s)
        return chosen


def told(number: int, ongoing: dict[str, ByClass]) -> dict[str, object]:
    return RoutingStats(number, ongoing, 10_000, NOTHING, None).as_dict()


@pytest.mark.parametrize("num_ingresses", [1, 2, 4])
def test_ingresses_do_not_run_to_one_replica_in_the_time_between_two_tellings(num_ingresses: int) -> None:
    """All see the same idle fleet; then each gives out its share of as many requests as there are run slots."""
    replicas = [f"replica-{i}" for i in range(8)]
    most = []
    for seed in range(50):
        ingresses = [Ingress(f"ingress-{i}", replicas, seed * 10 + i) for i in range(num_ingresses)]
        for ingress in ingresses:
            for load in ingress.loads.values():
                load.told(told(1, {}), 0.0)
        sent = Counter(ingresses[n % num_ingresses].route(0.1) for n in range(SLOTS * len(replicas)))
        most.append(max(sent.values()))
    assert max(most) == SLOTS, "a request waits where another replica has a free slot"


def test_ingresses_that_send_little_do_not_all_send_it_to_the_same_replicas() -> None:
    """Four send two requests each to eight idle replicas: without lots four would lie on the first, every time."""
    replicas = [f"replica-{i}" for i in range(8)]
    most = []
    for seed in range(200):
        ingresses = [Ingress(f"ingress-{i}", replicas, seed * 10 + i) for i in range(4)]
        for ingress in ingresses:
            for load in ingress.loads.values():
                load.told(told(1, {}), 0.0)
        most.append(max(Counter(ingress.route(0.1) for ingress in ingresses for _ in range(2)).values()))
    assert sum(most) / len(most) < 2.6


def test_ingress_sees_the_others_requests_once_they_are_told() -> None:
    replicas = ["a", "b"]
    first, second = (Ingress(name, replicas, seed=1) for name in ("first", "second"))
    ongoing: dict[str, dict[str, ByClass]] = {r: {} for r in replicas}
    for number in range(1, 20):
        for r in replicas:
            for ingress in (first, second):
                ingress.loads[r].told(told(number, dict(ongoing[r])), float(number))
        for ingress in (first, second):
            chosen = ingress.route(number + 0.1)
            ongoing[chosen][ingress.name] = plus(ongoing[chosen].get(ingress.name, NOTHING), P0, 1)
        sums = [sum(counts[0] for counts in ongoing[r].values()) for r in replicas]
        assert abs(sums[0] - sums[1]) <= 2
