from typing import Any

from sim.gate import SimGate
from sim.request import Arrival, Track
from sim.scenario import Contender
from sim.simulation import simulate
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.settings import parse_settings
from tests.sim.test_simulation import scenario, stream

P0, P1, P2 = PriorityClass
LIMITS: dict[str, Any] = {"p2": {"queue_timeout_s": 10, "max_in_flight": 1, "max_queued": 2}}


class Desk:
    """A gate, and what became of whom."""

    def __init__(self, num_replicas: int = 1) -> None:
        self.admitted: list[int] = []
        self.ended: list[tuple[int, Outcome]] = []
        self.planned: list[float] = []
        settings = parse_settings({"admission": LIMITS, "engine": {"max_num_seqs": 2}})
        self.gate = SimGate(
            settings,
            num_replicas,
            lambda track: self.admitted.append(track.arrival.number),
            lambda track, outcome: self.ended.append((track.arrival.number, outcome)),
            self.planned.append,
        )

    def arrive(self, number: int, priority: PriorityClass = P2, at_s: float = 0.0) -> Track:
        track = Track(Arrival(number, at_s, priority, 10, 10))
        self.gate.arrive(track, at_s)
        return track


def test_who_fits_is_admitted_the_rest_waits_and_what_has_no_room_is_shed() -> None:
    desk = Desk()
    first = desk.arrive(0)
    for number in range(1, 4):
        desk.arrive(number)
    assert desk.admitted == [0]
    assert desk.gate.num_waiting == 2
    assert desk.ended == [(3, Outcome.SHED)]
    desk.gate.release(first, 1.0)
    assert desk.admitted == [0, 1]


def test_who_waited_as_long_as_its_class_may_expires() -> None:
    desk = Desk()
    desk.arrive(0)
    desk.arrive(1, at_s=1.0)
    assert desk.planned == [11.0]
    desk.gate.settle(11.0)
    assert desk.ended == [(1, Outcome.EXPIRED)]


def test_another_class_has_room_of_its_own() -> None:
    desk = Desk()
    desk.arrive(0)
    desk.arrive(1, P0)
    assert desk.admitted == [0, 1]


def test_waiters_are_let_in_when_a_replica_comes() -> None:
    desk = Desk(num_replicas=0)
    desk.arrive(0)
    assert desk.admitted == []
    desk.gate.set_num_replicas(1, 3.0)
    assert desk.admitted == [0]


def test_gate_keeps_batch_work_of_an_overload_out_of_our_replicas_alone() -> None:
    load = scenario(
        settings={"engine": {"max_num_seqs": 4}, "admission": {"p2": {"queue_timeout_s": 5, "max_queued": 4}}},
        traffic=[stream("P0", 1, 50, 10), stream("P2", 20, 200, 100)],
    )
    ours, stock = (simulate(load, contender) for contender in (Contender.EXPRESSLANE, Contender.PRIORITY))
    of_p2 = ours.of(P2)
    assert of_p2 is not None
    assert of_p2.outcomes[Outcome.SHED] > 100
    of_p0 = ours.of(P0)
    assert of_p0 is not None
    assert set(of_p0.outcomes) == {Outcome.COMPLETED}
    assert all(set(of_class.outcomes) == {Outcome.COMPLETED} for of_class in stock.classes)
    open_gate = simulate(
        load.model_copy(update={"fleet": load.fleet.model_copy(update={"gate": False})}), Contender.EXPRESSLANE
    )
    assert all(set(of_class.outcomes) == {Outcome.COMPLETED} for of_class in open_gate.classes)
