"""Whose adapter gives up its place, as tables."""

from __future__ import annotations

import pytest

from replicas.scheduler.adapter_places import AdapterPlaces
from replicas.scheduler.views import Asker, Holder, Room
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass


def user(request_id: str, adapter: int | None, priority: PriorityClass = P2, **rest) -> Holder:
    return Holder(request_id, priority, 0.0, 100, adapter=adapter, **rest)


def asker(adapter: int | None, priority: PriorityClass = P0) -> Asker:
    return Asker("asker", priority, need_blocks=1, need_tokens=1, adapter=adapter)


def places(*users: Holder, most: int | None = 1) -> AdapterPlaces:
    adapters = [u.adapter for u in users if u.adapter is not None and not u.is_paused]
    counts = {a: adapters.count(a) for a in adapters}
    room = Room(0, 0, 0, False, 0, {}, len(users), 0, adapters=counts, max_adapters=most)
    return AdapterPlaces(room)


def leaving(users: list[Holder], adapter: int, priority: PriorityClass = P0, most: int = 1) -> list[str] | None:
    chosen = places(*users, most=most).choose_leaving(users, asker(adapter, priority))
    return None if chosen is None else sorted(h.request_id for h in chosen)


@pytest.mark.parametrize(
    ("users", "adapter", "most", "expected"),
    [
        ([user("a", 1)], 1, 1, True),
        ([user("a", 1)], 2, 1, False),
        ([user("a", 1)], 2, 2, True),
        ([user("a", 1)], None, 1, True),
        ([user("a", 1)], 2, None, True),
        ([user("a", 1, is_paused=True)], 2, 1, True),
        ([user("a", None)], 2, 1, True),
    ],
)
def test_adapter_has_a_place_beside_those_of_the_running_ones(users, adapter, most, expected) -> None:
    assert places(*users, most=most).has_place(adapter) is expected


@pytest.mark.parametrize(
    ("users", "priority", "most", "expected"),
    [
        ([user("a", 1), user("b", 1)], P0, 1, ["a", "b"]),
        ([user("a", 1), user("b", 2)], P0, 3, []),
        ([user("a", 1), user("b", 1, P0)], P0, 1, None),
        ([user("a", 1), user("b", 1, can_yield=False)], P0, 1, None),
        ([user("a", 1), user("b", 1, P1)], P1, 1, None),
        ([user("a", 1), user("b", 1), user("c", 2)], P0, 2, ["c"]),
        ([user("a", 1, P1), user("b", 2), user("c", 2)], P0, 2, ["b", "c"]),
        ([user("a", 1), user("b", 2, P0)], P0, 2, ["a"]),
        ([user("a", 1), user("b", None), user("c", 1, is_paused=True)], P0, 1, ["a"]),
    ],
)
def test_adapter_gets_its_place_from_the_one_that_is_easiest_to_do_without(users, priority, most, expected) -> None:
    assert leaving(users, 9, priority, most) == expected


def test_adapter_of_one_that_has_joined_keeps_its_place() -> None:
    users = [user("a", 1)]
    plan = places(*users)
    plan.join(asker(1, P1))
    assert plan.choose_leaving(users, asker(2, P1)) is None


def test_adapter_that_is_closing_takes_nobody_until_all_its_users_have_left() -> None:
    users = [user("a", 1), user("b", 1)]
    plan = places(*users)
    plan.leave(users[0])
    plan.close(users)
    assert plan.closing == {1}
    assert not plan.has_place(1)
    assert not plan.has_place(2)
    plan = places(*users)
    for holder in users:
        plan.leave(holder)
    plan.close(users)
    assert plan.closing == set()
    assert plan.has_place(2)
