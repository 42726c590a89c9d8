"""A lost replica loses no answer: the request is asked again elsewhere, or its answer continued from the tokens it has.

The client sees one answer. Stands around the dispatcher and inside the gate's permit, which so covers all attempts.
What can be continued, and how, the replica decides (`replicas.resumption`); here is who asks again, when, how often.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from app.dispatch import Dispatcher
from app.metrics import IngressMetrics
from slo.errors import NotContinued, ReplicaLost, ServingError
from slo.messages import Chunk, Failure, GenerateCall, Recovery, Reply, Resumed, Resumption
from slo.settings.faults import FaultSettings

logger = logging.getLogger("expresslane.ingress")

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
"""Between two looks for a replica that answers: doubled each time, from the first to the longest."""
_CREATED = re.compile(r'"created":(\d+)')


@dataclass(slots=True)
class Sent:
    """What the client has of one streamed answer."""

    first_events: str | None = None
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    num_closing: int = 0

    def note(self, chunk: Chunk) -> None:
        """`chunk` goes to the client now. Called for each one: it costs about 0.3 us."""
        if self.first_events is None:
            self.first_events = chunk.events
        if self.finish_reason is not None:
            self.num_closing += 1
        elif chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        self.token_ids += chunk.token_ids

    def resumption(self) -> Resumption | None:
        """Where to go on from; None: nothing was sent."""
        if self.first_events is None:
            return None
        created = _CREATED.search(self.first_events)
        return Resumption(
            tuple(self.token_ids), int(created[1]) if created else None, self.finish_reason, self.num_closing
        )


class SurvivingDispatcher:
    """A dispatcher whose requests outlive their replicas.

    Args:
        inner: loses a request with its replica, and says so by `Failure(ReplicaLost)`.
        sleep: seconds.
    """

    def __init__(
        self,
        inner: Dispatcher,
        faults: FaultSettings,
        metrics: IngressMetrics,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._inner = inner
        self._faults = faults
        self._metrics = metrics
        self._sleep = sleep

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Reply, None]:
        """See `Dispatcher.generate`."""
        sent = Sent()
        for attempt in range(1, self._faults.max_attempts + 1):
            lost: ReplicaLost | None = None
            async with aclosing(self._inner.generate(replace(call, resumption=sent.resumption()))) as replies:
                async for reply in replies:
                    match reply:
                        case Chunk():
                            sent.note(reply)
                            yield reply
                        case Resumed():
                            self._resumed(reply, sent)
                        case Failure(error=ReplicaLost() as error):
                            lost = error
                            break
                        case _:
                            yield reply
            if lost is None:
                return
            if not await self._can_go_on(call, attempt, lost, sent):
                yield Failure(lost)
                return

    async def models(self) -> list[dict[str, Any]]:
        """See `Dispatcher.models`. Asked once."""
        return await self._inner.models()

    def _resumed(self, resumed: Resumed, sent: Sent) -> None:
        del sent.token_ids[resumed.num_kept :]
        self._metrics.recovered(resumed.recovery)

    async def _can_go_on(self, call: GenerateCall, attempt: int, lost: ReplicaLost, sent: Sent) -> bool:
        goes_on = (
            not isinstance(lost, NotContinued) and attempt < self._faults.max_attempts and await self._finds_a_replica()
        )
        if not goes_on:
            self._metrics.recovered(Recovery.NOT_POSSIBLE)
        elif sent.first_events is None:
            self._metrics.recovered(Recovery.RETRIED)
        logger.log(
            logging.INFO if goes_on else logging.WARNING,
            "request_id=%s attempt=%d tokens_kept=%d goes_on=%s reason=%r",
            call.request_id,
            attempt,
            len(sent.token_ids),
            goes_on,
            lost.message,
        )
        return goes_on

    async def _finds_a_replica(self) -> bool:
        """Waits, for a bounded time, until a replica answers. A request itself would wait in Serve's handle without end
        while none runs, and be failed once more by one whose engine is dead."""
        try:
            async for look in AsyncRetrying(
                sleep=self._sleep,
                stop=stop_after_delay(self._faults.replacement_timeout_s),
                wait=wait_exponential(multiplier=FIRST_PAUSE_S, max=MAX_PAUSE_S),
                retry=retry_if_exception_type(ServingError),
                reraise=True,
            ):
                with look:
                    await self._inner.models()
        except ServingError:
            return False
        return True
