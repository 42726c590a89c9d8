"""Mutations that these tests see: no part of the slots unshared; a share above it; a share of nothing; a large request
within a share that it exceeds; weights left out; one that asks alone held to half; the only tenant limited or delayed;
a delay without a bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gate.ask import Ask
from app.gate.limits import derive_limits
from app.gate.load import Load
from app.gate.shares import Shares, delay_s_of, has_turn, is_within_share, share_of
from slo.messages import MAX_DELAY_S
from slo.priority import PriorityClass
from slo.settings import parse_settings

P0, P1, P2 = PriorityClass
LIMITS = derive_limits(parse_settings({"engine": {"max_num_seqs": 8}}), num_replicas=1).classes
EIGHT = LIMITS[P1]
"""Eight slots, of which four are unshared, and six while one tenant asks alone."""


def ask(sequences: int = 1, priority: PriorityClass = P1, is_alone: bool = False) -> Ask:
    return Ask("r", priority, "a", 1.0, Load(sequences, 100, 10), is_alone)


@pytest.mark.parametrize(
    ("part", "share"),
    [
        (1, 6),  # alone now, and not the only tenant
        (1 / 2, 4),
        (1 / 3, 2),
        (1 / 8, 1),
        (1 / 100, 1),
        (9 / 10, 6),  # never more than what one may have that asks alone
        (2 / 3, 5),
        (0.7 / (0.7 + 0.7), 4),
    ],
)
def test_share_is_the_weights_part_of_the_slots_and_leaves_some_to_newcomers(part: float, share: int) -> None:
    assert share_of(EIGHT, part) == share


@pytest.mark.parametrize(("slots", "tenants", "weight"), [(6, 2, 0.7), (16, 8, 0.7), (18, 3, 0.1)])
def test_equal_shares_lose_no_slot_to_a_sum_of_weights(slots: int, tenants: int, weight: float) -> None:
    limits = replace(EIGHT, slots=slots, unshared_of_one=slots)
    assert share_of(limits, weight / sum([weight] * tenants)) == slots // tenants


@pytest.mark.parametrize(
    ("sequences", "shares", "is_within"),
    [
        (1, Shares(1, within=5, of_tenant=5), True),  # nobody else asks
        (1, Shares(1, within=6, of_tenant=6), False),  # one that comes finds slots that yield
        (1, Shares(1 / 3, within=3, of_tenant=3), True),  # the class leaves slots
        (1, Shares(1 / 3, within=4, of_tenant=3), False),
        (1, Shares(1 / 2, within=4, of_tenant=4), False),
        (1, Shares(1 / 2, within=6, of_tenant=4), False),
        (1, Shares(1 / 2, within=6, of_tenant=3), True),
        (1, Shares(1 / 2, within=9, of_tenant=0), True),
        (1, Shares(1 / 3, within=6, of_tenant=2), False),
        (4, Shares(1 / 9, within=0, of_tenant=0), True),
        (5, Shares(1 / 9, within=0, of_tenant=0), False),  # more than a share: nobody else would have one
        (6, Shares(1, within=0, of_tenant=0), True),
        (7, Shares(1, within=0, of_tenant=0), False),
        (4, Shares(1 / 2, within=3, of_tenant=0), True),
        (5, Shares(1 / 2, within=3, of_tenant=0), False),
        (2, Shares(1 / 2, within=6, of_tenant=3), False),
    ],
)
def test_request_is_surplus_when_its_tenant_has_its_share_and_the_class_much(
    sequences: int, shares: Shares, is_within: bool
) -> None:
    assert is_within_share(EIGHT, ask(sequences), shares) is is_within


@pytest.mark.parametrize("priority", PriorityClass)
def test_nothing_is_surplus_of_the_only_tenant(priority: PriorityClass) -> None:
    assert is_within_share(LIMITS[priority], ask(priority=priority, is_alone=True), Shares(1, 99, 99))


@pytest.mark.parametrize(
    ("sequences", "shares", "expected"),
    [
        (1, Shares(1 / 2, within=6, of_tenant=3), True),
        (1, Shares(1 / 2, within=6, of_tenant=4), False),
        (5, Shares(1 / 2, within=6, of_tenant=0), False),  # others of its tenant run as surplus
        (5, Shares(1 / 2, within=6, of_tenant=0, is_idle=True), True),
    ],
)
def test_what_is_within_a_share_has_a_turn_and_so_has_the_first_of_an_idle_tenant_however_large(
    sequences: int, shares: Shares, expected: bool
) -> None:
    assert has_turn(EIGHT, ask(sequences), shares) is expected


def test_nothing_is_surplus_of_p2_nor_where_no_share_is_set() -> None:
    assert is_within_share(LIMITS[P2], ask(priority=P2), Shares(1 / 9, 99, 99))
    values = {"engine": {"max_num_seqs": 8}, "admission": {"unshared_ratio": 1}}
    unlimited = derive_limits(parse_settings(values), num_replicas=1).classes
    assert all(is_within_share(unlimited[c], ask(priority=c), Shares(1 / 9, 99, 99)) for c in PriorityClass)


@pytest.mark.parametrize(
    ("shares", "is_surplus", "delay"),
    [
        (Shares(1 / 2, within=3, of_tenant=0), False, 0),
        (Shares(1 / 2, within=3, of_tenant=1), False, 1 / 4),
        (Shares(1 / 2, within=3, of_tenant=3), False, 3 / 4),
        (Shares(1 / 2, within=5, of_tenant=5), False, 1),
        (Shares(1 / 2, within=8, of_tenant=4), True, 1),
    ],
)
def test_request_is_passed_by_those_whose_tenants_use_less_of_their_shares_and_not_for_long(
    shares: Shares, is_surplus: bool, delay: float
) -> None:
    assert delay_s_of(EIGHT, ask(), shares, is_surplus) == delay * MAX_DELAY_S


def test_nothing_is_delayed_of_the_only_tenant_nor_of_p2() -> None:
    assert delay_s_of(EIGHT, ask(is_alone=True), Shares(1, 5, 5), is_surplus=False) == 0
    assert delay_s_of(LIMITS[P2], ask(priority=P2), Shares(1 / 2, 5, 5), is_surplus=False) == 0


@given(st.integers(1, 300), st.floats(0.01, 1), st.lists(st.floats(0.1, 10), min_size=1, max_size=20))
def test_shares_fill_the_slots_at_most_but_for_the_least_of_one_each(
    slots: int, ratio: float, weights: list[float]
) -> None:
    limits = replace(EIGHT, slots=slots, unshared_of_one=math.ceil(slots * ratio))
    shares = [share_of(limits, weight / sum(weights)) for weight in weights]
    assert min(shares) >= 1
    assert sum(share for share in shares if share > 1) <= slots
    assert all(share <= limits.unshared_of_one for share in shares)
