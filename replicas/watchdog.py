"""Whether the engine is lost: the rule, and the watchdog that asks the engine, listens, and looks about once a second.

The engine core answers a question between two of its steps, and at once when it is idle. So whoever has a question open
and hears nothing for longer than the longest step takes has an engine that is stuck: a frozen process, a driver that
hangs, a step without end. That holds with work or without, so that an idle engine that froze is found before a request
pays for it, and a request that has just come to an idle engine never counts the silence before it.

Owns nothing of what follows: `replicas.deployment` ends the engine and its own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from replicas.statistics import EngineStatistics

logger = logging.getLogger("expresslane.replica")

LOOK_PERIOD_S = 1.0
MAX_COUNTED_S = 2 * LOOK_PERIOD_S
"""The most silence that one look adds. A look that comes much later than planned says that this process did not run
either (a blocked event loop, a machine that slept): the engine's word may lie there unread, and it gets the time to be
read."""


class LossReason(Enum):
    """How an engine is lost; the `reason` of the log's line."""

    DIED = "engine_died"
    STALLED = "engine_stalled"


@dataclass(frozen=True, slots=True)
class Loss:
    """The engine is lost: it will not answer any more.

    Attributes:
        silent_s: how long it had owed a word.
    """

    reason: LossReason
    silent_s: float


@dataclass(frozen=True, slots=True)
class Watch:
    """What the looks so far have seen. Times are of a monotonic clock, seconds.

    Attributes:
        silent_s: for how long the engine has owed a word, of the time in which this process was there to hear it.
    """

    looked_s: float
    silent_s: float = 0.0

    def look(self, now_s: float, has_spoken: bool) -> Watch:
        """The watch after a look at `now_s`; `has_spoken`: the engine has said anything since the last one.

        Each look leaves a question open, so that silence until the next is a debt.
        """
        if has_spoken:
            return Watch(now_s)
        return Watch(now_s, self.silent_s + min(now_s - self.looked_s, MAX_COUNTED_S))


def judge(watch: Watch, has_died: bool, limit_s: float) -> Loss | None:
    """Whether the engine is lost. `has_died`: vLLM says so; `limit_s`: the silence that is still taken for work."""
    if has_died:
        return Loss(LossReason.DIED, watch.silent_s)
    if watch.silent_s > limit_s:
        return Loss(LossReason.STALLED, watch.silent_s)
    return None


class WatchedEngine(Protocol):
    """What the watchdog needs of vLLM's `AsyncLLM`, on the replica's event loop."""

    @property
    def errored(self) -> bool:
        """Whether the engine core has died. vLLM notices by itself when its process ends, within about a second."""
        ...

    async def is_paused(self) -> bool:
        """A question that the engine core answers between two steps. What it answers does not matter."""
        ...


class Watchdog:
    """Watches one engine. Used on the replica's event loop only.

    Args:
        statistics: they hear each step of the engine.
        limit_s: see `judge`.
    """

    def __init__(
        self,
        engine: WatchedEngine,
        statistics: EngineStatistics,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._statistics = statistics
        self._limit_s = limit_s
        self._clock = clock
        self._watch = Watch(clock())
        self._num_heard = statistics.num_heard
        self._question: asyncio.Task[bool] | None = None
        self._hurry = asyncio.Event()

    async def until_lost(self) -> Loss:
        """Looks about once a second; returns when the engine is lost."""
        try:
            while (loss := self.look()) is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), LOOK_PERIOD_S)
                self._hurry.clear()
            return loss
        finally:
            if self._question is not None:
                self._question.cancel()  # A dead engine leaves it open for ever.

    def look_now(self) -> None:
        """Something has gone wrong with the engine: do not wait for the next look."""
        self._hurry.set()

    def look(self) -> Loss | None:
        """One look: whether the engine is lost by now. Leaves a question open."""
        self._watch = self._watch.look(self._clock(), self._has_spoken())
        if self._question is None:
            self._question = asyncio.get_running_loop().create_task(self._ask(), name="watchdog question")
        return judge(self._watch, self._engine.errored, self._limit_s)

    def _has_spoken(self) -> bool:
        """Since the last look: an answer, or what it tells with each step."""
        num_heard, self._num_heard = self._num_heard, self._statistics.num_heard
        has_answered = self._question is not None and self._question.done()
        if has_answered:
            self._question = None
        return has_answered or self._num_heard != num_heard

    async def _ask(self) -> bool:
        try:
            return await self._engine.is_paused()
        except Exception as error:  # any word is one; a dead engine is told by `errored`
            if not self._engine.errored:
                logger.warning("error=%s reason=question_failed", type(error).__name__)
            return False
