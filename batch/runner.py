"""Runs the lines of all open batches, a few at a time, and ends the batches.

The database alone says what has ended; what is here can be lost with its process, and is found again there: a line that
was in flight then is run again. Holds no rule of its own: `policy` says which line is next, and what follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from batch import batches, files, lines, results
from batch.database import Database
from batch.keeper import Keeper
from batch.lines import LineResult, PendingLine
from batch.policy import AGAIN_S, Again, Settle, choose_batch, decide
from batch.running import DeskAway, LineDesk, Running
from batch.validation import Expected, body_of, check_lines
from slo.batch import BATCH_ENDPOINTS, BatchStatus, LineCall
from slo.errors import ServingError
from slo.outcome import LineOutcome
from slo.settings import Settings

logger = logging.getLogger("expresslane.batch")

LINES_A_LOOK: Final = 100
"""Pending lines whose places are read from the database at once, and expired ones that are ended at once."""
LOOK_S: Final = 1.0
"""How long the runner waits when nothing tells it to look: batches expire, and pauses end."""
SWEEP_S: Final = 60.0
"""Between two looks for files whose time is over."""


class Runner:
    """The batches that are open. Everything runs on one event loop.

    Args:
        now_s: Unix seconds, in which batches expire.
        clock: monotonic, seconds, in which pauses are measured.
    """

    def __init__(
        self,
        database: Database,
        desk: LineDesk,
        settings: Settings,
        now_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database = database
        self._desk = desk
        self._settings = settings
        self._now_s = now_s
        self._clock = clock
        self._sleep = sleep
        self._keeper = Keeper(database, sleep)
        self._running: dict[int, Running] = {}
        self._of_models = tuple(settings.by_model.values())
        self._num_replicas = settings.replicas.num_replicas
        self._wake = asyncio.Event()
        self._is_stale = True
        """The database has to be asked which batches are open."""
        self._turn = 0
        self._last_turns: Counter[str] = Counter()
        """By tenant."""
        self._swept_s: float | None = None
        self._looked_s = clock()
        self.num_ended: Counter[LineOutcome] = Counter()
        self.num_retries = 0

    @property
    def num_in_flight(self) -> int:
        """Lines that an ingress process has now, or whose results are being kept."""
        return sum(len(running.in_flight) for running in self._running.values())

    @property
    def num_open(self) -> int:
        """Batches that have not ended."""
        return len(self._running)

    def silent_s(self) -> float:
        """Since the runner last got through a look."""
        return self._clock() - self._looked_s

    def look(self) -> None:
        """Something has changed in the database: a batch is new, has ended, or is to be cancelled."""
        self._is_stale = True
        self._wake.set()

    async def run(self) -> None:
        """Runs until it is cancelled; then lines in flight are given up, to be run again by who comes next."""
        await self._database.is_ours.wait()
        self._looked_s = self._clock()
        try:
            while True:
                self._wake.clear()
                await self._guarded(self.step(), "all")
                self._looked_s = self._clock()
                with contextlib.suppress(TimeoutError):  # not wait_for, which may lose a cancellation (Python 3.11)
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()
        finally:
            self._keeper.close()
            await self._give_up(task for running in self._running.values() for task in running.tasks())

    async def step(self) -> None:
        """One look: takes up what is new, ends what is over, starts what may run."""
        await self._sweep()
        if self._is_stale:
            await self._take_up()
        for running in self._running.values():
            if running.ending is None and (act := self._what_ends(running)) is not None:
                running.ending = asyncio.create_task(self._ending(running, act))
        while self.num_in_flight < self._most():
            views = (running.view(self._last_turns[running.batch.tenant]) for running in self._running.values())
            number = choose_batch(views, self._clock())
            if number is None:
                return
            await self._start_one(self._running[number])

    def _most(self) -> int:
        """Of several models, the one with the fewest run slots counts: a batch may fill its engines alone."""
        slots = min(of_model.engine.max_num_seqs for of_model in self._of_models)
        return self._settings.batch.max_lines_in_flight(slots, self._num_replicas)

    async def _guarded(self, act: Coroutine[Any, Any, None], batch: str) -> None:
        """Does it, and goes on whatever goes wrong: without the loop nothing would run any more."""
        try:
            await act
        except ServingError as error:
            logger.warning("batch=%s reason=%r", batch, error.message)
            await self._sleep(AGAIN_S)
        except Exception:
            logger.exception("batch=%s reason=failed", batch)
            await self._sleep(AGAIN_S)

    async def _take_up(self) -> None:
        self._is_stale = False  # before the question: what changes meanwhile is asked for again
        try:
            found = await self._database.read(batches.open_batches)
        except ServingError:
            self._is_stale = True
            raise
        for batch in found:
            self._running.setdefault(batch.number, Running(batch)).batch = batch

    async def _sweep(self) -> None:
        if self._swept_s is not None and self._clock() - self._swept_s < SWEEP_S:
            return
        self._swept_s = self._clock()
        await self._database.write(partial(files.remove_old, now_s=int(self._now_s())))

    def _what_ends(self, running: Running) -> Callable[[Running], Coroutine[Any, Any, None]] | None:
        """What is to be done with a batch beside running its lines."""
        if running.batch.status is BatchStatus.CANCELLING:
            return self._cancel
        if running.is_read_whole and not running.lines and not running.in_flight:
            return self._complete
        if self._now_s() >= running.batch.expires_s:
            return self._expire
        return self._validate if running.batch.status is BatchStatus.VALIDATING else None

    async def _ending(self, running: Running, act: Callable[[Running], Coroutine[Any, Any, None]]) -> None:
        try:
            await self._guarded(act(running), running.batch.id)
        finally:
            running.ending = None
            self.look()

    async def _validate(self, running: Running) -> None:
        batch, settings = running.batch, self._settings
        expected = Expected(
            batch.endpoint,
            [name for of_model in self._of_models for name in of_model.model_names],
            settings.batch.max_lines,
            settings.ingress.max_body_bytes,
            any(of_model.engine.adapters_dir is not None for of_model in self._of_models),
        )
        checked = await self._database.read(
            lambda session: check_lines(files.read_chunks(session, batch.input_file_id), expected)
        )
        now_s = int(self._now_s())
        if not checked.faults:
            await self._database.write(partial(batches.begin, number=batch.number, lines=checked.lines, now_s=now_s))
        elif await self._database.write(partial(batches.fail, number=batch.number, faults=checked.faults, now_s=now_s)):
            del self._running[batch.number]
        logger.info("batch=%s lines=%d faults=%d reason=validated", batch.id, len(checked.lines), len(checked.faults))

    async def _complete(self, running: Running) -> None:
        if await self._database.read(partial(lines.pending_lines, number=running.batch.number, after=0, limit=1)):
            running.last_read, running.is_read_whole = 0, False  # some were given up: they are run again
            return
        await self._finish(running, BatchStatus.COMPLETED)

    async def _cancel(self, running: Running) -> None:
        await self._give_up(running.in_flight.values())
        await self._finish(running, BatchStatus.CANCELLED)

    async def _expire(self, running: Running) -> None:
        await self._give_up(running.in_flight.values())
        batch, num_expired = running.batch, 0
        look = partial(lines.pending_lines, number=batch.number, after=0, limit=LINES_A_LOOK)
        while left := await self._database.read(look):
            ends = [
                LineResult(
                    n.number, LineOutcome.EXPIRED, results.expired(results.line_id(batch.id, n.number), n.custom_id)
                )
                for n in left
            ]
            num_expired += await self._database.write(partial(lines.settle, batch=batch.number, ends=ends))
        self.num_ended[LineOutcome.EXPIRED] += num_expired
        is_whole = num_expired == 0 and batch.status is BatchStatus.IN_PROGRESS
        await self._finish(running, BatchStatus.COMPLETED if is_whole else BatchStatus.EXPIRED)

    async def _finish(self, running: Running, status: BatchStatus) -> None:
        act = partial(batches.finish, number=running.batch.number, status=status, now_s=int(self._now_s()))
        self.num_ended[LineOutcome.CANCELLED] += await self._database.write(act)
        del self._running[running.batch.number]
        logger.info("batch=%s status=%s reason=ended", running.batch.id, status.value)

    async def _start_one(self, running: Running) -> None:
        if not running.lines:
            await self._read_on(running)
        if running.lines:
            line = running.lines.popleft()
            self._turn += 1
            self._last_turns[running.batch.tenant] = self._turn
            running.in_flight[line.number] = asyncio.create_task(self._run_line(running, line))

    async def _read_on(self, running: Running) -> None:
        look = partial(lines.pending_lines, number=running.batch.number, after=running.last_read, limit=LINES_A_LOOK)
        running.lines.extend(await self._database.read(look))
        running.is_read_whole = len(running.lines) < LINES_A_LOOK
        if running.lines:
            running.last_read = running.lines[-1].number
        else:
            self._wake.set()  # it may be complete

    async def _run_line(self, running: Running, line: PendingLine) -> None:
        try:
            await self._answer(running, line)
        except (DeskAway, ServingError):
            self._put_back(running, line, AGAIN_S)
        except Exception:  # or the line would be neither in flight nor pending, until its batch looks for it
            logger.exception("batch=%s line=%d reason=line_failed", running.batch.id, line.number)
            self._put_back(running, line, AGAIN_S)
        finally:
            del running.in_flight[line.number]
            self._wake.set()

    async def _answer(self, running: Running, line: PendingLine) -> None:
        batch = running.batch
        read = partial(files.read_slice, file_id=batch.input_file_id, start=line.start, num_bytes=line.num_bytes)
        body = body_of(await self._database.read(read))
        request_id = results.line_id(batch.id, line.number)
        answer = await self._desk.answer(LineCall(request_id, BATCH_ENDPOINTS[batch.endpoint], batch.tenant, body))
        self._num_replicas = answer.num_replicas
        match decide(answer, running.attempts[line.number], self._settings.batch.max_attempts):
            case Again(after_s=after_s, is_attempt=is_attempt):
                if is_attempt:
                    running.attempts[line.number] += 1
                self._put_back(running, line, after_s)
            case Settle(outcome=outcome):
                shown = results.answered(request_id, line.custom_id, answer)
                ended = await self._keeper.keep(batch.number, LineResult(line.number, outcome, shown))
                self.num_ended[outcome] += ended

    def _put_back(self, running: Running, line: PendingLine, after_s: float) -> None:
        """The line is tried again, and its batch rests until then: its other lines would fare no better."""
        running.lines.appendleft(line)
        running.ready_s = max(running.ready_s, self._clock() + after_s)
        self.num_retries += 1

    async def _give_up(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        given_up = list(tasks)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)

    def check_invariants(self) -> None:
        """For tests: no line is twice in memory, and no more are in flight than may be."""
        for running in self._running.values():
            held = [line.number for line in running.lines] + list(running.in_flight)
            assert len(held) == len(set(held)), f"{running.batch.id}: a line is there twice"
        assert self.num_in_flight <= self._settings.batch.max_lines_in_flight(
            self._settings.engine.max_num_seqs, max(self._num_replicas, self._settings.replicas.num_replicas)
        )
