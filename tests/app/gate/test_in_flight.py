from app.gate.ask import Ask
from app.gate.in_flight import InFlight
from app.gate.load import Load
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass


def ask(priority: PriorityClass, tenant: str) -> Ask:
    return Ask("r", priority, tenant, 1.0, Load(1, 10, 5))


def test_in_flight_sums_by_class_and_tenant() -> None:
    held = InFlight()
    held.add(1, ask(P1, "a"), Load(2, 10, 5))
    held.add(2, ask(P1, "b"), Load(1, 20, 5))
    held.add(3, ask(P2, "a"), Load(1, 30, 5))
    held.check_invariants()
    assert held.loads == {P0: Load(), P1: Load(3, 30, 10), P2: Load(1, 30, 5)}
    assert [held.of_tenant(P1, "a"), held.of_tenant(P1, "b"), held.of_tenant(P0, "a")] == [2, 1, 0]
    assert len(held) == 3


def test_in_flight_is_empty_again_when_all_have_ended() -> None:
    held = InFlight()
    for number in range(3):
        held.add(number, ask(P0, "a"), Load(1, number + 1, 5))
        held.check_invariants()
    for number in (1, 0, 2):
        assert held.remove(number) == (ask(P0, "a"), Load(1, number + 1, 5))
        held.check_invariants()
    assert held.loads[P0] == Load()
    assert len(held) == 0
