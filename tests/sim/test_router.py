import pytest

from sim.replica import Replica
from sim.request import Arrival
from sim.router import make_router
from sim.scenario import Contender
from tests.sim.scenes import P0, P2, build, new_log
from tests.sim.test_simulation import scenario


def replicas(num: int) -> list[Replica]:
    return [Replica(i, build(new_log(), max_num_seqs=4)) for i in range(num)]


def give(replica: Replica, arrival: Arrival) -> None:
    replica.engine.add(new_log().begin(arrival), arrival.arrived_s)


def test_in_turn_gives_each_as_many() -> None:
    router, fleet = make_router(scenario(fleet={"router": "in_turn"}), Contender.FCFS), replicas(3)
    chosen = [router.choose(Arrival(i, 0.0, P2, 10, 10), fleet, 0.0).number for i in range(6)]
    assert sorted(chosen) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("name", ["two_choices", "expresslane"])
def test_request_goes_where_less_is_under_way(name: str) -> None:
    router, fleet = make_router(scenario(fleet={"router": name}), Contender.EXPRESSLANE), replicas(2)
    for number in range(3):
        give(fleet[0], Arrival(number, 0.0, P2, 10, 100))
    assert router.choose(Arrival(9, 0.1, P0, 10, 10), fleet, 0.1) is fleet[1]


def test_urgent_request_goes_where_others_can_yield_when_all_slots_are_taken() -> None:
    router, fleet = make_router(scenario(), Contender.EXPRESSLANE), replicas(2)
    for number in range(4):
        give(fleet[0], Arrival(number, 0.0, P0, 10, 1000))
    for number in range(4, 10):
        give(fleet[1], Arrival(number, 0.0, P2, 10, 1000))
    assert router.choose(Arrival(10, 0.1, P0, 10, 10), fleet, 0.1) is fleet[1]


def test_router_counts_what_it_sends_until_it_ends() -> None:
    router, fleet = make_router(scenario(), Contender.EXPRESSLANE), replicas(2)
    first = Arrival(0, 0.0, P0, 10, 10)
    busy = router.choose(first, fleet, 0.0)
    for number in range(1, 4):
        assert router.choose(Arrival(number, 0.0, P0, 10, 10), fleet, 0.0) is fleet[1 - busy.number]
        router.ended(Arrival(number, 0.0, P0, 10, 10), fleet[1 - busy.number])
    router.ended(first, busy)
