"""What is done with the lines of a batch, each function within one transaction.

A line ends once: whoever ends it does so only where it has not ended, and counts it in the same transaction. So a line
that is run again after a crash, or by two owners at once, still has one result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from batch.files import OPEN_STATUSES
from batch.tables import BatchRow, LineRow
from slo.outcome import LineOutcome


@dataclass(frozen=True, slots=True)
class PendingLine:
    """A line that has not ended, and where it lies in the input file."""

    number: int
    custom_id: str
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class LineResult:
    """How a line ended, and its line of the file that shows it."""

    number: int
    outcome: LineOutcome
    shown: bytes


def pending_lines(session: Session, number: int, after: int, limit: int) -> Sequence[PendingLine]:
    """Lines that have not ended, in order, after the one of this number."""
    rows = session.execute(
        select(LineRow.number, LineRow.custom_id, LineRow.start, LineRow.num_bytes)
        .where(LineRow.batch == number, LineRow.number > after, LineRow.outcome.is_(None))
        .order_by(LineRow.number)
        .limit(limit)
    )
    return [PendingLine(*row) for row in rows]


def num_pending(session: Session) -> int:
    """Lines of all open batches that have not ended."""
    left = func.sum(BatchRow.num_lines - BatchRow.num_completed - BatchRow.num_failed)
    return int(session.scalar(select(left).where(BatchRow.status.in_(OPEN_STATUSES))) or 0)


def settle(session: Session, batch: int, ends: Sequence[LineResult]) -> int:
    """Ends lines with their results; how many had not ended before. Those that had keep the result that they have."""
    num_ended = 0
    for result in ends:
        ended: Any = session.execute(
            update(LineRow)
            .where(LineRow.batch == batch, LineRow.number == result.number, LineRow.outcome.is_(None))
            .values(outcome=result.outcome.value, result=result.shown)
        )
        if ended.rowcount == 1:
            _count(session, batch, result)
            num_ended += 1
    return num_ended


def _count(session: Session, batch: int, result: LineResult) -> None:
    size = len(result.shown)
    if result.outcome is LineOutcome.COMPLETED:
        counts: dict[Any, Any] = {
            BatchRow.num_completed: BatchRow.num_completed + 1,
            BatchRow.completed_bytes: BatchRow.completed_bytes + size,
        }
    else:
        counts = {
            BatchRow.num_failed: BatchRow.num_failed + 1,
            BatchRow.failed_bytes: BatchRow.failed_bytes + size,
        }
    session.execute(update(BatchRow).where(BatchRow.number == batch).values(counts))
