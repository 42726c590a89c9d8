"""Requests and tokens a minute of each tenant, by the library `limits`.

Its moving window keeps an entry for each token: 10 million tokens a minute took 80 MB and 2.5 ms of the event loop a
request (measured, limits 5.8). Its sliding window counter keeps two numbers, takes 6 us, and tells how much of the last
minute is used as if the minute before had been even. It reads the wall clock: one that is set gives a tenant, at most,
a fresh minute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from app.gate.load import Load
from app.gate.tenant import Tenant
from slo.errors import OverQuota, Rejected, RejectReason

WINDOW_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What is used of one limit: in the window before, in the present one, and when that ends, in seconds from now."""

    before: int
    now: int
    ends_in_s: float


def quota_wait_s(usage: Usage, limit: int, cost: int) -> float:
    """Seconds until `cost`, at most `limit`, fits if nothing else is used; 0 when it fits now. Pure.

    The window before counts by the part of it that the last minute still covers, which falls with time; when the
    present window ends, it becomes the one before.
    """
    room = limit - cost
    if math.floor(usage.before * usage.ends_in_s / WINDOW_S + usage.now) <= room:
        return 0.0
    if usage.now <= room:
        return usage.ends_in_s - (room - usage.now) * WINDOW_S / usage.before
    return usage.ends_in_s + WINDOW_S - room * WINDOW_S / usage.now


class Quotas:
    """What each tenant has used. Each of several ingress processes has its part of a limit."""

    def __init__(self, num_ingresses: int) -> None:
        self._num_ingresses = num_ingresses
        self._storage = MemoryStorage()
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)

    async def charge(self, tenant: Tenant, load: Load) -> None:
        """Charges one request to `tenant`, whole or not at all. What is refused later stays charged.

        Raises:
            OverQuota: it does not fit into the minute.
            Rejected: it would not fit into any: it asks for more tokens than its tenant has a minute.
        """
        if tenant.tokens_per_minute is not None and load.tokens > tenant.tokens_per_minute:
            raise Rejected(
                f"the request counts as {load.tokens} tokens (prompt by estimate, and max_tokens), more than this API "
                f"key's {tenant.tokens_per_minute} a minute",
                param="max_tokens",
                reason=RejectReason.TOO_LARGE,
            )
        costs = [
            (self._item("requests", tenant.requests_per_minute), tenant.requests_per_minute, 1),
            (self._item("tokens", tenant.tokens_per_minute), tenant.tokens_per_minute, load.tokens),
        ]
        for item, limit, cost in costs:
            if item is not None and (wait_s := await self._wait_s(item, tenant, cost)) > 0:
                raise OverQuota(
                    f"this API key's {limit} {item.namespace} a minute are used up; try again in {math.ceil(wait_s)} s",
                    wait_s,
                )
        for item, _, cost in costs:  # no other request came in between: nothing above waits for anything
            if item is not None:
                await self._limiter.hit(item, tenant.name, cost=min(cost, item.amount))

    def _item(self, what: str, limit: int | None) -> RateLimitItem | None:
        if limit is None:
            return None
        return RateLimitItemPerMinute(math.ceil(limit / self._num_ingresses), namespace=what)

    async def _wait_s(self, item: RateLimitItem, tenant: Tenant, cost: int) -> float:
        window = await self._storage.get_sliding_window(item.key_for(tenant.name), item.get_expiry())
        before, _, now, now_expires_in_s = window  # the present window counts on through the one after it
        return quota_wait_s(Usage(before, now, now_expires_in_s - WINDOW_S), item.amount, min(cost, item.amount))
