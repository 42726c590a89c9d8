"""Mutations that these tests see: charge requests when tokens are refused; never charge; take the whole limit in each
of several ingress processes; leave the window before out; a wait that is too short or too long."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gate.load import Load
from app.gate.quota import WINDOW_S, Quotas, Usage, quota_wait_s
from app.gate.tenant import Tenant
from slo.errors import OverQuota, Rejected, RejectReason

ONE = Load(1, 100, 10)


class WallClock:
    """What the library `limits` reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_800_000_000.0  # a minute begins
        monkeypatch.setattr(time, "time", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


async def num_charged(quotas: Quotas, tenant: Tenant, load: Load = ONE, most: int = 50) -> int:
    """How many requests in a row are let in."""
    for num in range(most):
        try:
            await quotas.charge(tenant, load)
        except OverQuota:
            return num
    return most


@pytest.mark.usefixtures("clock")
async def test_quota_lets_in_as_many_requests_as_it_says() -> None:
    quotas, tenant = Quotas(1), Tenant("a", requests_per_minute=5)
    assert await num_charged(quotas, tenant) == 5
    with pytest.raises(OverQuota, match="this API key's 5 requests a minute are used up; try again in") as raised:
        await quotas.charge(tenant, ONE)
    assert raised.value.retry_after_s == 60 + 12  # the five count until a fifth of the minute after has passed


@pytest.mark.usefixtures("clock")
async def test_quota_lets_in_as_many_tokens_as_it_says() -> None:
    quotas, tenant = Quotas(1), Tenant("a", tokens_per_minute=1050)
    assert await num_charged(quotas, tenant) == 10
    await quotas.charge(tenant, Load(1, 50, 1))
    with pytest.raises(OverQuota, match="1050 tokens a minute"):
        await quotas.charge(tenant, Load(1, 1, 1))


async def test_quota_lets_in_again_when_the_time_it_told_has_passed(clock: WallClock) -> None:
    quotas, tenant = Quotas(1), Tenant("a", requests_per_minute=5, tokens_per_minute=500)
    await num_charged(quotas, tenant)
    with pytest.raises(OverQuota) as raised:
        await quotas.charge(tenant, ONE)
    start_s = clock.now_s
    clock.now_s = start_s + raised.value.retry_after_s - 1.5
    with pytest.raises(OverQuota):
        await quotas.charge(tenant, ONE)
    clock.now_s = start_s + raised.value.retry_after_s + 0.01
    await quotas.charge(tenant, ONE)


@pytest.mark.usefixtures("clock")
async def test_quota_charges_no_request_when_the_tokens_are_refused() -> None:
    quotas, tenant = Quotas(1), Tenant("a", requests_per_minute=2, tokens_per_minute=150)
    await quotas.charge(tenant, ONE)
    for _ in range(5):
        with pytest.raises(OverQuota, match="tokens"):
            await quotas.charge(tenant, ONE)
    await quotas.charge(tenant, Load(1, 50, 1))
    with pytest.raises(OverQuota, match="requests"):
        await quotas.charge(tenant, Load(1, 1, 1))


@pytest.mark.usefixtures("clock")
async def test_quotas_of_tenants_are_their_own() -> None:
    quotas = Quotas(1)
    assert await num_charged(quotas, Tenant("a", requests_per_minute=5)) == 5
    assert await num_charged(quotas, Tenant("b", requests_per_minute=5)) == 5
    assert await num_charged(quotas, Tenant("c"), most=20) == 20


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("num_ingresses", "part"), [(2, 5), (3, 4), (20, 1)])
async def test_quota_is_divided_among_ingress_processes(num_ingresses: int, part: int) -> None:
    assert await num_charged(Quotas(num_ingresses), Tenant("a", requests_per_minute=10)) == part


@pytest.mark.usefixtures("clock")
async def test_request_larger_than_a_minutes_tokens_is_refused_for_good() -> None:
    quotas = Quotas(1)
    with pytest.raises(Rejected, match=r"counts as 101 tokens .* more than this API key's 100 a minute") as raised:
        await quotas.charge(Tenant("a", tokens_per_minute=100), Load(1, 101, 1))
    assert raised.value.reason is RejectReason.TOO_LARGE


@pytest.mark.usefixtures("clock")
async def test_request_larger_than_one_ingress_process_part_takes_all_of_it() -> None:
    quotas, tenant = Quotas(4), Tenant("a", tokens_per_minute=100)
    await quotas.charge(tenant, Load(1, 90, 1))
    with pytest.raises(OverQuota):
        await quotas.charge(tenant, Load(1, 1, 1))


@pytest.mark.usefixtures("clock")
async def test_changed_quota_holds_from_the_next_request_on() -> None:
    quotas = Quotas(1)
    assert await num_charged(quotas, Tenant("a", requests_per_minute=5)) == 5
    assert await num_charged(quotas, Tenant("a", requests_per_minute=8)) == 8


async def test_quota_keeps_no_more_when_a_tenant_asks_for_long(clock: WallClock) -> None:
    quotas, tenant = Quotas(1), Tenant("a", requests_per_minute=1000, tokens_per_minute=10**9)
    for _ in range(500):
        clock.now_s += 7
        await quotas.charge(tenant, Load(1, 10**6, 1))
        await asyncio.sleep(0)  # the library clears up in a task
    assert len(quotas._storage.storage) <= 6
    assert not quotas._storage.events


@pytest.mark.parametrize(
    ("usage", "limit", "cost", "wait_s"),
    [
        (Usage(0, 0, 60), 10, 10, 0),
        (Usage(0, 5, 30), 10, 5, 0),
        (Usage(0, 6, 30), 10, 5, 30 + 10),  # 6 count as 5 a sixth of a minute after the present one
        (Usage(10, 0, 60), 10, 5, 30),
        (Usage(10, 0, 60), 10, 1, 6),
        (Usage(10, 5, 30), 10, 5, 30),
        (Usage(0, 10, 30), 10, 10, 90),
        (Usage(10, 0, 30), 10, 5, 0),
    ],
)
def test_quota_wait_is_until_enough_of_the_last_minute_has_passed(
    usage: Usage, limit: int, cost: int, wait_s: float
) -> None:
    assert quota_wait_s(usage, limit, cost) == pytest.approx(wait_s)


@given(st.integers(0, 100), st.integers(0, 100), st.floats(0.001, 60), st.integers(1, 100), st.integers(1, 100))
def test_quota_wait_is_enough_and_at_most_two_minutes(
    before: int, now: int, ends_in_s: float, limit: int, cost: int
) -> None:
    before, now, cost = min(before, limit), min(now, limit), min(cost, limit)
    wait_s = quota_wait_s(Usage(before, now, ends_in_s), limit, cost)
    assert 0 <= wait_s <= 2 * WINDOW_S
    if wait_s < ends_in_s:
        used = before * (ends_in_s - wait_s) / WINDOW_S + now
    else:
        used = now * (WINDOW_S - (wait_s - ends_in_s)) / WINDOW_S
    assert int(used + 1e-9) + cost <= limit or used + cost <= limit + 1e-6
