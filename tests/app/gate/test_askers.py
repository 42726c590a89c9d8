"""Mutations that these tests see: forget one that has a request here; remember for ever; count a tenant twice; keep the
weight of an older request; mix the classes."""

from __future__ import annotations

from app.gate.ask import Ask
from app.gate.askers import REMEMBERED_S, Askers
from app.gate.load import Load
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass


def ask(priority: PriorityClass, tenant: str) -> Ask:
    return Ask("r", priority, tenant, 1.0, Load(1, 10, 5))


def test_part_is_that_of_each_tenants_weight_once_by_its_latest_request() -> None:
    askers = Askers()
    for priority, tenant, weight in ((P1, "a", 1.0), (P1, "a", 1.0), (P1, "b", 3.0), (P0, "a", 4.0)):
        askers.come(priority, tenant, weight, 0.0)
    assert [askers.part(P1, "a"), askers.part(P1, "b"), askers.part(P0, "a")] == [1 / 4, 3 / 4, 1]
    askers.come(P1, "b", 1.0, 1.0)
    assert askers.part(P1, "a") == 1 / 2
    askers.check_invariants(ask(P1, "a"), ask(P1, "a"), ask(P1, "b"), ask(P1, "b"), ask(P0, "a"))


def test_tenant_is_forgotten_a_minute_after_it_asked_last_when_nothing_of_it_is_here() -> None:
    askers = Askers()
    askers.come(P1, "stays", 1.0, 0.0)
    askers.come(P1, "goes", 2.0, 0.0)
    askers.go(P1, "goes")
    askers.forget(REMEMBERED_S - 2)
    assert askers.part(P1, "stays") == 1 / 3
    askers.forget(REMEMBERED_S)
    assert askers.part(P1, "stays") == 1
    askers.check_invariants(ask(P1, "stays"))
    askers.go(P1, "stays")
    askers.forget(10 * REMEMBERED_S)
    askers.come(P1, "new", 5.0, 10 * REMEMBERED_S)
    assert askers.part(P1, "new") == 1
    askers.check_invariants(ask(P1, "new"))


def test_tenant_that_asks_again_is_remembered_from_then_on() -> None:
    askers = Askers()
    for at_s in (0.0, REMEMBERED_S - 5):
        askers.come(P1, "a", 1.0, at_s)
        askers.go(P1, "a")
    askers.forget(REMEMBERED_S + 5)
    assert askers.part(P1, "a") == 1
