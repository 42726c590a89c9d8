"""The gate as one request passes it: whose key it has, which class that may have, what its tenant has left, its turn.

Puts the parts of this package together for the API, and holds no rule of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from app.classify import Classification
from app.dispatch import Dispatcher
from app.gate.access import Access, GrantedClass, grant_class
from app.gate.ask import Ask
from app.gate.estimate import estimate
from app.gate.gate import Gate
from app.gate.quota import Quotas
from app.gate.tenant import Tenant
from slo.errors import ServingError
from slo.messages import Failure, GenerateCall, Reply
from slo.settings import Settings

logger = logging.getLogger("expresslane.gate")


class Entry:
    """One model's gate in one ingress process. Used on its event loop only.

    Args:
        settings: of that model alone.
        quotas: those of all models, where there are several: a key's minute is one.
    """

    def __init__(self, settings: Settings, access: Access, quotas: Quotas | None = None) -> None:
        self._settings = settings
        self._access = access
        self._quotas = quotas or Quotas(settings.ingress.num_replicas)
        self.gate = Gate(settings, settings.replicas.num_replicas)

    def tenant_of(self, headers: Mapping[str, str]) -> Tenant:
        """Whose key is in `headers` (lower-case names). Raises Rejected: there is none, or it is not valid."""
        return self._access.tenant_of(headers.get("authorization"))

    def tenant_named(self, name: str) -> Tenant | None:
        """The tenant of this name; None: it has no key now."""
        return self._access.tenant_named(name)

    def grant(self, decided: Classification, tenant: Tenant) -> GrantedClass:
        """The class that a request gets. Raises Rejected: it is above the tenant's, and such are refused."""
        return grant_class(decided, tenant, self._settings.tenants.above_class)

    async def ask_for(self, call: GenerateCall, body: Mapping[str, Any], num_bytes: int, tenant: Tenant) -> Ask:
        """What the gate is asked for `call`; charged to its tenant's quotas.

        Args:
            body: as the client sent it, and `num_bytes` its size.

        Raises:
            OverQuota: the tenant has used its minute.
            Rejected: it asks for more than the tenant has in any minute.
        """
        load = estimate(body, num_bytes, self._settings.admission)
        await self._quotas.charge(tenant, load)
        return Ask(call.request_id, call.priority, tenant.name, tenant.weight, load, tenant.is_alone)

    async def admitted(self, ask: Ask, call: GenerateCall, dispatcher: Dispatcher) -> AsyncGenerator[Reply, None]:
        """The replies to `call`, sent when the gate admits `ask`, which is in flight until they end or this is closed.

        Like a dispatcher it yields a refusal as a `Failure` and raises none.
        """
        try:
            async with (
                self.gate.permit(ask) as standing,
                aclosing(dispatcher.generate(replace(call, standing=standing))) as replies,
            ):
                async for reply in replies:
                    yield reply
        except ServingError as error:
            yield Failure(error)

    @contextlib.asynccontextmanager
    async def following(
        self, num_replicas: Callable[[], Awaitable[int | None]], period_s: float
    ) -> AsyncIterator[None]:
        """While the process serves: asks how many replicas run each `period_s`, seconds; at the end, closes the gate.

        Args:
            num_replicas: None when it is not known: then the last one holds.
        """
        task = asyncio.create_task(self._follow(num_replicas, period_s), name="gate: replicas")
        try:
            yield
        finally:
            task.cancel()
            self.gate.close()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self, num_replicas: Callable[[], Awaitable[int | None]], period_s: float) -> None:
        while True:
            try:
                told = await num_replicas()
                if told is not None:
                    self.gate.set_num_replicas(told)
            except Exception:  # the loop goes on: without it the gate would keep to this number for ever
                logger.exception("reason=replicas_not_counted")
            await asyncio.sleep(period_s)
