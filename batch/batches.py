"""What is done with batches, each function within one transaction. Everything belongs to a tenant; no other sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, delete, func, insert, select
from sqlalchemy.orm import Session

from batch.files import OPEN_STATUSES, by_age, find_file, new_id, not_found, paged
from batch.tables import BatchRow, FileRow, LineRow
from batch.validation import CheckedLine
from slo.batch import (
    BatchObject,
    BatchPage,
    BatchStatus,
    LineFault,
    LineFaults,
    Listing,
    NewBatch,
    RequestCounts,
    window_s,
)
from slo.errors import OverQuota, Rejected
from slo.settings.batch import BatchSettings

OPEN_RETRY_S: Final = 60.0
"""When one who has too many open batches may come again. No estimate."""
LINES_AN_INSERT: Final = 1000


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """What its owner has to know of a batch that has not ended. `number` orders them by age."""

    number: int
    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    status: BatchStatus
    expires_s: int


def create(session: Session, tenant: str, new: NewBatch, settings: BatchSettings, now_s: int) -> BatchObject:
    """A batch whose lines have not been looked at.

    Raises:
        Rejected: the tenant has no such file, or it is none to read from; or the completion window is too long.
        OverQuota: it has too many open batches.
    """
    window = window_s(new.completion_window)
    if window is None:
        raise Rejected("completion_window: must be 7 days at most, such as 24h", param="completion_window")
    file = find_file(session, tenant, new.input_file_id)
    if file.purpose != "batch":
        raise Rejected(f"input_file_id: {file.id} has the purpose {file.purpose}, not batch", param="input_file_id")
    num_open = session.scalar(select(func.count()).where(BatchRow.tenant == tenant, BatchRow.status.in_(OPEN_STATUSES)))
    if (num_open or 0) >= settings.max_open_batches:
        raise OverQuota(f"{num_open} batches have not ended, as many as you may have; try again later", OPEN_RETRY_S)
    expiry = new.output_expires_after
    row = BatchRow(
        id=new_id("batch_"),
        tenant=tenant,
        endpoint=new.endpoint,
        input_file_id=file.id,
        completion_window=new.completion_window,
        output_retention_s=int(settings.output_retention_s) if expiry is None else expiry.seconds,
        status=BatchStatus.VALIDATING.value,
        client_metadata=new.metadata,
        created_s=now_s,
        expires_s=now_s + window,
    )
    session.add(row)
    session.flush()
    return shown(row)


def find(session: Session, tenant: str, batch_id: str) -> BatchObject:
    """A batch of this tenant. Raises Rejected: it has none of this id."""
    return shown(_find(session, tenant, batch_id))


def list_batches(session: Session, tenant: str, wanted: Listing) -> BatchPage:
    """The batches of a tenant. Raises Rejected: `after` is none of them."""
    query = _batches(tenant)
    if wanted.after is not None:
        query = query.where(BatchRow.number < _find(session, tenant, wanted.after).number)
    rows = session.scalars(query.order_by(by_age(BatchRow.number, wanted)).limit(wanted.limit + 1)).all()
    return paged(BatchPage, [shown(row) for row in rows], wanted)


def begin_cancel(session: Session, tenant: str, batch_id: str, now_s: int) -> BatchObject:
    """The batch is to be cancelled; asked again it says the same. Raises Rejected: no such, or it has ended."""
    row = _find(session, tenant, batch_id)
    status = BatchStatus(row.status)
    if not status.is_open:
        raise Rejected(f"the batch has ended: it is {status.value}", param="batch_id")
    if status is not BatchStatus.CANCELLING:
        row.status = BatchStatus.CANCELLING.value
        row.cancelling_s = now_s
    return shown(row)


def open_batches(session: Session) -> Sequence[OpenBatch]:
    """All that have not ended, of all tenants, the oldest first."""
    rows = session.scalars(select(BatchRow).where(BatchRow.status.in_(OPEN_STATUSES)).order_by(BatchRow.number))
    return [
        OpenBatch(r.number, r.id, r.tenant, r.endpoint, r.input_file_id, BatchStatus(r.status), r.expires_s)
        for r in rows
    ]


def begin(session: Session, number: int, lines: Sequence[CheckedLine], now_s: int) -> bool:
    """The lines are good: they may run. False: the batch was cancelled meanwhile."""
    row = session.get_one(BatchRow, number)
    if row.status != BatchStatus.VALIDATING.value:
        return False
    for first in range(0, len(lines), LINES_AN_INSERT):
        session.execute(
            insert(LineRow),
            [
                {
                    "batch": number,
                    "number": n,
                    "custom_id": line.custom_id,
                    "start": line.start,
                    "num_bytes": line.num_bytes,
                }
                for n, line in enumerate(lines[first : first + LINES_AN_INSERT], first + 1)
            ],
        )
    row.status, row.in_progress_s, row.num_lines = BatchStatus.IN_PROGRESS.value, now_s, len(lines)
    return True


def fail(session: Session, number: int, faults: Sequence[LineFault], now_s: int) -> bool:
    """The lines are not good: the batch ends. False: it was cancelled meanwhile."""
    row = session.get_one(BatchRow, number)
    if row.status != BatchStatus.VALIDATING.value:
        return False
    row.status, row.failed_s = BatchStatus.FAILED.value, now_s
    row.faults = LineFaults(data=tuple(faults)).model_dump(mode="json")
    return True


def finish(session: Session, number: int, status: BatchStatus, now_s: int) -> int:
    """The batch ends, with a file for its results and one for its errors, where it has any. Done once or more often.

    Args:
        status: COMPLETED, EXPIRED or CANCELLED.

    Returns:
        How many lines had not ended, and never will.
    """
    row = session.get_one(BatchRow, number)
    if not BatchStatus(row.status).is_open:
        return 0
    left: Any = session.execute(delete(LineRow).where(LineRow.batch == number, LineRow.outcome.is_(None)))
    row.finalizing_s = None if status is BatchStatus.CANCELLED else now_s
    row.status = status.value
    setattr(row, f"{status.value}_s", now_s)
    if row.num_completed:
        row.output_file_id = _results_file(session, row, row.completed_bytes, False, now_s)
    if row.num_failed:
        row.error_file_id = _results_file(session, row, row.failed_bytes, True, now_s)
    return int(left.rowcount)


def shown(row: BatchRow) -> BatchObject:
    """As its tenant sees it."""
    return BatchObject(
        id=row.id,
        endpoint=row.endpoint,
        errors=None if row.faults is None else LineFaults.model_validate(row.faults),
        input_file_id=row.input_file_id,
        completion_window=row.completion_window,
        status=BatchStatus(row.status),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=row.created_s,
        in_progress_at=row.in_progress_s,
        expires_at=row.expires_s,
        finalizing_at=row.finalizing_s,
        completed_at=row.completed_s,
        failed_at=row.failed_s,
        expired_at=row.expired_s,
        cancelling_at=row.cancelling_s,
        cancelled_at=row.cancelled_s,
        request_counts=RequestCounts(total=row.num_lines, completed=row.num_completed, failed=row.num_failed),
        metadata=row.client_metadata,
    )


def _batches(tenant: str) -> Select[BatchRow]:
    return select(BatchRow).where(BatchRow.tenant == tenant)


def _find(session: Session, tenant: str, batch_id: str) -> BatchRow:
    row = session.scalar(_batches(tenant).where(BatchRow.id == batch_id))
    if row is None:
        raise not_found("batch", batch_id)
    return row


def _results_file(session: Session, batch: BatchRow, num_bytes: int, shows_errors: bool, now_s: int) -> str:
    kind = "error" if shows_errors else "output"
    row = FileRow(
        id=new_id("file-"),
        tenant=batch.tenant,
        filename=f"{batch.id}_{kind}.jsonl",
        purpose="batch_output",
        num_bytes=num_bytes,
        created_s=now_s,
        expires_s=now_s + batch.output_retention_s,
        is_whole=True,
        shows_batch=batch.number,
        shows_errors=shows_errors,
    )
    session.add(row)
    session.flush()
    return row.id
