"""Running a load: an open loop, in which arrivals do not wait for answers, or a closed one of so many streams.

Also watches itself: how late each request was sent, and how late this process's event loop was at other times, when it
may have read tokens late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from bench.reply import Reply
from bench.workload import Arrival

Send = Callable[[bytes, Arrival], Awaitable[Reply]]
Prepare = Callable[[Arrival], bytes]
LOOP_PROBE_S = 0.02


class Watcher(Protocol):
    """Told as a run goes on, on its event loop: must be quick."""

    def sent(self) -> None:
        """One more request was sent."""

    def ended(self, reply: Reply) -> None:
        """One more has ended."""


class Unwatched:
    """A watcher that looks away."""

    def sent(self) -> None: ...

    def ended(self, reply: Reply) -> None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One request of a run. Times are seconds from the run's start.

    Attributes:
        at_s: when it was to be sent; in a closed loop, when it was.
    """

    class_name: str
    at_s: float
    reply: Reply


@dataclass(frozen=True, slots=True)
class Run:
    """A load that was run.

    Attributes:
        answers: every request, in the order of their arrival; times are from the run's start.
        counted_from_s, counted_to_s: the window that is measured; what arrived before it was to warm up.
        loop_lags_s: how late this process's event loop was, sampled all along.
        is_open: arrivals did not wait for answers.
    """

    answers: tuple[Answer, ...]
    counted_from_s: float
    counted_to_s: float
    loop_lags_s: tuple[float, ...]
    is_open: bool

    @property
    def window_s(self) -> float:
        return self.counted_to_s - self.counted_from_s

    def counted(self) -> list[Answer]:
        """Those that arrived in the window."""
        return [answer for answer in self.answers if answer.at_s >= self.counted_from_s]


@dataclass(slots=True)
class Loop:
    """What a run is made with.

    Attributes:
        prepare: makes the body, before the request is due.
        clock: the one of the replies, monotonic seconds.
    """

    send: Send
    prepare: Prepare
    watcher: Watcher
    clock: Callable[[], float] = time.perf_counter
    _start_s: float = field(init=False, default=0.0)

    async def run_open(self, arrivals: Iterator[Arrival], warm_up_s: float, end_s: float) -> Run:
        """Sends each request at its time, whatever became of those before it, until `end_s`; waits for all answers.

        The window ends at `end_s`; where the arrivals end earlier, with the last answer.
        """
        tasks: list[asyncio.Task[Answer]] = []
        has_more = False
        async with _loop_lags(self.clock) as loop_lags_s:
            self._start_s = self.clock()
            try:
                for arrival in arrivals:
                    if has_more := arrival.at_s >= end_s:
                        break
                    payload = self.prepare(arrival)
                    # Also when it is late already: the requests before it must get on.
                    await asyncio.sleep(max(0.0, arrival.at_s - self._now_s()))
                    tasks.append(asyncio.create_task(self._one(payload, arrival, arrival.at_s)))
                answers = tuple(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()  # of a run that broke off; it is nothing to one that has ended
        window_end_s = end_s if has_more else max((a.reply.ended_s for a in answers), default=end_s)
        return Run(answers, warm_up_s, max(window_end_s, warm_up_s), tuple(loop_lags_s), is_open=True)

    async def run_closed(self, arrivals: Iterator[Arrival], streams: int, warm_up_s: float, end_s: float) -> Run:
        """So many streams, each sending its next request when its last is answered, until `end_s` or none is left.

        The window ends with the first stream that finds nothing more to send: from then on they are fewer.
        """
        answers: list[Answer] = []
        stopped_s: list[float] = []

        async def stream() -> None:
            while self._now_s() < end_s and (arrival := next(arrivals, None)) is not None:
                answers.append(await self._one(self.prepare(arrival), arrival, None))
            stopped_s.append(self._now_s())

        async with _loop_lags(self.clock) as loop_lags_s:
            self._start_s = self.clock()
            await asyncio.gather(*(stream() for _ in range(streams)))
        in_order = tuple(sorted(answers, key=lambda answer: answer.at_s))
        return Run(in_order, warm_up_s, max(min(stopped_s), warm_up_s), tuple(loop_lags_s), is_open=False)

    async def _one(self, payload: bytes, arrival: Arrival, at_s: float | None) -> Answer:
        self.watcher.sent()
        reply = _from_start(await self.send(payload, arrival), self._start_s)
        self.watcher.ended(reply)
        return Answer(arrival.spec.name, reply.sent_s if at_s is None else at_s, reply)

    def _now_s(self) -> float:
        return self.clock() - self._start_s


def _from_start(reply: Reply, start_s: float) -> Reply:
    return Reply(
        reply.outcome,
        reply.sent_s - start_s,
        reply.ended_s - start_s,
        tuple(time_s - start_s for time_s in reply.token_times_s),
        reply.prompt_tokens,
        reply.output_tokens,
        reply.error,
    )


@asynccontextmanager
async def _loop_lags(clock: Callable[[], float]) -> AsyncGenerator[list[float], None]:
    """How late the event loop wakes a sleeper, sampled while the context is open."""
    lags_s: list[float] = []

    async def probe() -> None:
        while True:
            due_s = clock() + LOOP_PROBE_S
            await asyncio.sleep(LOOP_PROBE_S)
            lags_s.append(max(0.0, clock() - due_s))

    task = asyncio.create_task(probe())
    try:
        yield lags_s
    finally:
        task.cancel()
