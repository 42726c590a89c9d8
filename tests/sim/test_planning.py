import pytest

from sim.linear_cost import LinearCost
from sim.planning import budgets_of, plan, uses_of
from sim.scenario import Contender
from slo.priority import PriorityClass
from tests.sim.test_simulation import scenario, stream

P0, P1, P2 = PriorityClass


def test_plan_finds_the_fewest_replicas_and_tells_of_one_more_and_one_fewer() -> None:
    load = scenario(
        duration_s=15,
        settings={"engine": {"max_num_seqs": 4}, "scheduler": {"targets": {"p0": {"tbt_p99_ms": 40}}}},
        traffic=[stream("P0", 6, 200, 40)],
    )
    found = plan(load, Contender.EXPRESSLANE, most=16)
    assert found.fewest is not None
    assert found.fewest > 1
    by_number = {tried.num_replicas: tried for tried in found.tried}
    assert list(by_number) == sorted(by_number)
    assert by_number[found.fewest].figures.holds
    assert by_number[found.fewest + 1].figures.holds
    fewer = by_number[found.fewest - 1]
    assert not fewer.figures.holds
    worst = fewer.uses[P0].worst
    assert worst is not None
    assert worst > (by_number[found.fewest + 1].uses[P0].worst or 0.0)


def test_plan_gives_up_at_the_most() -> None:
    load = scenario(duration_s=5, traffic=[stream("P0", 20, 3000, 20)])
    found = plan(load, Contender.EXPRESSLANE, most=2)
    assert found.fewest is None
    assert found.tried[-1].num_replicas == 2


def test_plan_is_of_replicas_that_are_always_there() -> None:
    load = scenario(
        duration_s=60,
        settings={"autoscale": {"min_replicas": 1, "max_replicas": 1}},
        fleet={"scaling": "requests", "target_requests": 0.01},
        traffic=[stream("P1", 1, 50, 10)],
    )
    found = plan(load, Contender.EXPRESSLANE, most=2)
    assert found.fewest == 1
    for tried in found.tried:
        assert tried.figures.replica_hours * 60 == pytest.approx(tried.num_replicas, rel=0.1)


def test_use_is_of_promised_classes_alone() -> None:
    load = scenario(duration_s=5)
    found = plan(load, Contender.FCFS, most=1)
    assert set(uses_of(load, found.tried[0].figures)) == {P0}


def test_budget_is_the_largest_multiple_that_keeps_the_target() -> None:
    load = scenario(settings={"scheduler": {"budget": {"tbt_ratio": 1.0}}})
    cost = LinearCost(step_ms=10, prefill_token_ms=0.1, decode_ms=0)
    budgets = budgets_of(load, cost, num_decodes=0)
    assert budgets == {P0: 256, P1: 768, P2: 1792}
    assert budgets_of(load, cost, num_decodes=100)[P1] == pytest.approx(768 + 256, abs=256)
