from app.gate.ask import Ask
from app.gate.in_flight import Held, InFlight
from app.gate.load import Load
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass


def held_by(priority: PriorityClass, tenant: str, charge: Load, is_surplus: bool = False) -> Held:
    return Held(Ask("r", priority, tenant, 1.0, Load(1, 10, 5)), charge, is_surplus)


def test_in_flight_sums_by_class_and_tenant_and_keeps_the_surplus_apart() -> None:
    held = InFlight()
    held.add(1, held_by(P1, "a", Load(2, 10, 5)))
    held.add(2, held_by(P1, "b", Load(1, 20, 5)))
    held.add(3, held_by(P2, "a", Load(1, 30, 5)))
    held.add(4, held_by(P1, "a", Load(3, 40, 5), is_surplus=True))
    held.check_invariants()
    assert held.within == {P0: Load(), P1: Load(3, 30, 10), P2: Load(1, 30, 5)}
    assert held.surplus == {P0: Load(), P1: Load(3, 40, 5), P2: Load()}
    assert [held.of_tenant(P1, "a"), held.of_tenant(P1, "b"), held.of_tenant(P0, "a")] == [2, 1, 0]
    assert len(held) == 4
    held.add(5, held_by(P0, "c", Load(1, 10, 5), is_surplus=True))
    assert [held.has_any(P0, "c"), held.has_any(P1, "c"), held.has_any(P1, "a")] == [True, False, True]


def test_in_flight_is_empty_again_when_all_have_ended() -> None:
    held = InFlight()
    requests = [held_by(P0, "a", Load(1, number + 1, 5), is_surplus=number == 1) for number in range(3)]
    for number, request in enumerate(requests):
        held.add(number, request)
        held.check_invariants()
    for number in (1, 0, 2):
        assert held.remove(number) == requests[number]
        held.check_invariants()
    assert held.within[P0] == held.surplus[P0] == Load()
    assert len(held) == 0
