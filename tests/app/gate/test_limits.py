import math
from typing import Any

import pytest

from app.gate.ask import Ask
from app.gate.limits import GateLimits, derive_limits
from app.gate.load import Load, Room
from slo.priority import PriorityClass
from slo.settings import parse_settings

P0, P1, P2 = PriorityClass


def limits(num_replicas: int = 1, **groups: Any) -> GateLimits:
    return derive_limits(parse_settings(groups), num_replicas)


def test_limits_are_derived_from_slots_and_what_serve_takes_when_none_is_set() -> None:
    derived = limits()
    assert {c.name: derived.classes[c].in_flight for c in PriorityClass} == dict.fromkeys(
        ("P0", "P1", "P2"), Room(80, 80 * 32_768)
    )
    assert {derived.classes[c].in_flight_at_most for c in PriorityClass} == {Room(160, 160 * 32_768)}
    assert [derived.classes[c].in_flight_with_surplus for c in PriorityClass] == 3 * [Room(72, 80 * 32_768)]
    assert [derived.classes[c].in_flight_of_all for c in PriorityClass] == [1024, 768, 512]
    assert [derived.classes[c].slots for c in PriorityClass] == [64, 64, 64]
    assert [derived.classes[c].unshared for c in PriorityClass] == [32, 32, math.inf]
    assert [derived.classes[c].unshared_of_one for c in PriorityClass] == [48, 48, math.inf]
    assert [derived.classes[c].queue.sequences for c in PriorityClass] == [256, 512, 1024]
    assert [derived.classes[c].queue.tokens for c in PriorityClass] == [256 * 8192, 512 * 8192, 1024 * 8192]
    assert [derived.classes[c].queue_timeout_s for c in PriorityClass] == [2, 30, 300]
    assert [derived.classes[c].max_wait_s for c in PriorityClass] == [1.6, 24, 240]
    assert derived.max_held_bytes == 512 * 2**20


def test_limits_in_flight_grow_with_the_replicas_and_the_queues_do_not() -> None:
    one, four = limits(), limits(num_replicas=4)
    assert four.classes[P1].in_flight.sequences == 4 * one.classes[P1].in_flight.sequences
    assert (four.classes[P1].slots, four.classes[P1].unshared) == (4 * 64, 4 * 32)
    assert four.classes[P1].queue == one.classes[P1].queue


@pytest.mark.parametrize(("num_ingresses", "sequences"), [(1, 80), (2, 40), (3, 28), (64, 2)])
def test_limits_in_flight_are_divided_among_the_ingress_processes(num_ingresses: int, sequences: int) -> None:
    derived = limits(ingress={"num_replicas": num_ingresses})
    assert derived.classes[P2].in_flight.sequences == sequences
    assert derived.classes[P0].in_flight_of_all == 1024 // num_ingresses


@pytest.mark.parametrize(
    ("slots", "several", "one"), [(1, 1, 1), (2, 1, 1), (3, 2, 2), (4, 2, 3), (8, 4, 6), (64, 32, 48)]
)
def test_limits_leave_slots_to_a_newcomer_where_there_are_more_than_one(slots: int, several: int, one: int) -> None:
    derived = limits(engine={"max_num_seqs": slots}).classes[P1]
    assert (derived.unshared, derived.unshared_of_one) == (several, one)


@pytest.mark.parametrize(("most", "with_surplus"), [(1, 1), (2, 1), (16, 12), (20, 15), (99, 18)])
def test_limits_of_surplus_leave_another_tenant_a_part_of_what_is_set(most: int, with_surplus: int) -> None:
    derived = limits(engine={"max_num_seqs": 16}, admission={"p1": {"max_in_flight": most}}).classes[P1]
    assert derived.in_flight_with_surplus.sequences == with_surplus
    assert derived.in_flight_at_most.sequences == most
    assert derived.slots == min(16, most)


def test_limits_are_nothing_in_flight_when_no_replica_runs() -> None:
    derived = limits(num_replicas=0)
    assert derived.num_replicas == 0
    assert all(of.in_flight == Room(0, 0) and of.in_flight_of_all == 0 for of in derived.classes.values())


def test_limits_that_are_set_are_taken_for_each_replica_and_ingress() -> None:
    values = {
        "p2": {"max_in_flight": 10, "max_in_flight_tokens": 999, "max_queued": 7, "max_queued_tokens": 70},
        "max_held_bytes": 5,
    }
    derived = limits(2, admission=values, engine={"max_model_len": 100})
    assert derived.classes[P2].in_flight == Room(20, 2 * 999)
    assert derived.classes[P2].in_flight_with_surplus == Room(15, 1498)  # the rest is another tenant's
    assert derived.classes[P2].slots == 20
    assert derived.classes[P2].in_flight_at_most == Room(20, 2 * 999)
    assert derived.classes[P2].queue == Room(7, 70)
    assert derived.classes[P1].in_flight == Room(160, 160 * 100)
    assert derived.max_held_bytes == 5


def test_limits_never_take_all_that_an_ingress_process_may_have() -> None:
    derived = limits(num_replicas=100)
    assert derived.classes[P0].in_flight_of_all == 2048
    assert 2048 + derived.queue_room(P0).sequences < 4096


@pytest.mark.parametrize("slots", [1, 2, 64])
def test_limits_leave_p0_a_part_that_no_other_class_can_have(slots: int) -> None:
    """Also where Serve takes the fewest requests that settings allow; and P2 alone still fills every slot."""
    derived = limits(engine={"max_num_seqs": slots}, replicas={"max_ongoing_requests": 2 * slots})
    by_class = [derived.classes[c].in_flight_of_all for c in PriorityClass]
    assert by_class[0] == 2 * slots
    assert by_class[0] > by_class[1] >= by_class[2] >= slots


def test_queue_room_of_a_class_is_its_own_and_that_of_the_less_urgent() -> None:
    values = {c: {"max_queued": n, "max_queued_tokens": 10 * n} for c, n in (("p0", 1), ("p1", 2), ("p2", 4))}
    derived = limits(admission=values)
    assert [derived.queue_room(c) for c in PriorityClass] == [Room(7, 70), Room(6, 60), Room(4, 40)]


def test_queue_charge_is_what_is_asked_for_also_where_a_class_has_no_room_of_its_own() -> None:
    values = {c: {"max_queued": n, "max_queued_tokens": 100 * n or 1} for c, n in (("p0", 0), ("p1", 2), ("p2", 4))}
    derived = limits(admission=values)
    for priority, charge in ((P0, Load(5, 300, 9)), (P2, Load(4, 300, 9))):  # P0 may take what the others have
        assert derived.queue_charge(Ask("r", priority, "a", 1.0, Load(5, 300, 9))) == charge
