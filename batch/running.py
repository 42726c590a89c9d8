"""One open batch in its owner's memory, and where its lines are answered."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from batch.batches import OpenBatch
from batch.lines import PendingLine
from batch.policy import BatchView
from slo.batch import LineAnswer, LineCall


class LineDesk(Protocol):
    """Where lines are answered: an ingress process. Called on the owner's event loop."""

    async def answer(self, call: LineCall) -> LineAnswer:
        """Answers one line as a request of its tenant. Cancelling it stops the engine's work.

        Raises:
            DeskAway: no ingress process could be reached, or the one that had the line is lost.
        """
        ...


class DeskAway(Exception):
    """No ingress process answers."""


@dataclass(eq=False, slots=True)
class Running:
    """An open batch, as its owner has it in memory."""

    batch: OpenBatch
    lines: deque[PendingLine] = field(default_factory=deque)
    """Read and not started."""
    last_read: int = 0
    """The number of the last line that was read."""
    is_read_whole: bool = False
    in_flight: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    ready_s: float = 0.0
    ending: asyncio.Task[None] | None = None
    """What looks at its lines, or ends it; no line is started meanwhile."""

    def view(self, last_turn: int) -> BatchView:
        """As the policy sees it; `last_turn` is its tenant's."""
        has_lines = self.ending is None and bool(self.lines or not self.is_read_whole)
        return BatchView(self.batch.number, self.batch.tenant, len(self.in_flight), has_lines, self.ready_s, last_turn)

    def tasks(self) -> Iterator[asyncio.Task[None]]:
        """All that runs for it."""
        yield from self.in_flight.values()
        if self.ending is not None:
            yield self.ending
