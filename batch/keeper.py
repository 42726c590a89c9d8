"""Puts results of lines into the database: those that come while it is busy go into its next transaction, together.

Each commit waits for the disk; many lines that end at once wait for it once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from batch import lines
from batch.database import Database
from batch.lines import LineResult
from slo.errors import BatchesAway, StorageFull

logger = logging.getLogger("expresslane.batch")

FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
"""Between two tries to keep results: doubled each time, from the first to the longest."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A result that is not kept yet, and who waits for that."""

    batch: int
    result: LineResult
    kept: asyncio.Future[bool]


class Keeper:
    """Keeps results. Used on the owner's event loop."""

    def __init__(self, database: Database, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._database = database
        self._sleep = sleep
        self._waiting: list[Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def keep(self, batch: int, result: LineResult) -> bool:
        """Returns when the result is in the database, however long there is no room: it is not lost, nor made again.
        Whether it ended its line: False where that had a result already."""
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(batch, result, kept))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_all(), name="results")
        return await kept

    def close(self) -> None:
        """Who waits still waits in vain."""
        if self._task is not None:
            self._task.cancel()

    async def _keep_all(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting, []
            try:
                ended = await self._patiently(taken)
            except Exception as error:  # theirs who wait: each tries its line again
                for each in taken:
                    if not each.kept.cancelled():
                        each.kept.set_exception(error)
                continue
            for each, has_ended in zip(taken, ended, strict=True):
                if not each.kept.cancelled():
                    each.kept.set_result(has_ended)

    async def _patiently(self, taken: Sequence[Waiting]) -> list[bool]:
        def settle(session: Session) -> list[bool]:
            return [lines.settle(session, each.batch, [each.result]) == 1 for each in taken]

        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await self._database.write(settle)
            except (StorageFull, BatchesAway) as error:
                logger.error("results=%d reason=%r", len(taken), error.message)
                await self._sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
