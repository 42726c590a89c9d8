"""What is done with files, each function within one transaction. Everything belongs to a tenant; no other sees it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Select, delete, func, select, update
from sqlalchemy.orm import Session

from batch.tables import BatchRow, ChunkRow, FileRow, LineRow
from slo.batch import (
    CHUNK_BYTES,
    BatchObject,
    BatchPage,
    BatchStatus,
    ContentPage,
    FileDeleted,
    FileObject,
    FilePage,
    Listing,
    NewFile,
    file_too_large,
)
from slo.errors import Rejected, RejectReason
from slo.outcome import LineOutcome
from slo.settings.batch import BatchSettings

Page = TypeVar("Page", FilePage, BatchPage)
ROW_BYTES: Final = 512
"""What a file counts beside its content, so that empty ones are not for nothing. An estimate of its row and indexes."""
LINES_AT_ONCE: Final = 16
"""Results that are read from the database at once, while they are put into pages."""
STALE_UPLOAD_S: Final = 86_400
"""An upload that has not ended by then never will: its client or its process is gone."""
OPEN_STATUSES: Final = tuple(s.value for s in BatchStatus if s.is_open)


def begin_upload(session: Session, new: NewFile, settings: BatchSettings, now_s: int) -> str:
    """A file without content yet; its id. Raises Rejected: the tenant holds too much already."""
    row = FileRow(id=new_id("file-"), tenant=new.tenant, filename=new.filename, purpose="batch", created_s=now_s)
    session.add(row)
    session.flush()
    _check_room(session, new.tenant, settings)
    return row.id


def append(session: Session, tenant: str, file_id: str, content: bytes, settings: BatchSettings) -> None:
    """The next chunk of a file that is uploaded: `CHUNK_BYTES`, but for the last one.

    Raises:
        Rejected: there is no such upload, or the file or what its tenant holds becomes too large.
    """
    row = _upload(session, tenant, file_id)
    if row is None or row.num_bytes != row.num_chunks * CHUNK_BYTES or len(content) > CHUNK_BYTES:
        raise _given_up()
    session.add(ChunkRow(file=row.number, position=row.num_chunks, content=content))
    row.num_bytes += len(content)
    row.num_chunks += 1
    if row.num_bytes > settings.max_file_bytes:
        raise file_too_large(settings.max_file_bytes)
    session.flush()
    _check_room(session, tenant, settings)


def finish_upload(session: Session, tenant: str, file_id: str, expires_after_s: int | None) -> FileObject:
    """The file is whole, and can be used. Raises Rejected: there is no such upload."""
    row = _upload(session, tenant, file_id)
    if row is None:
        raise _given_up()
    row.is_whole = True
    row.expires_s = None if expires_after_s is None else row.created_s + expires_after_s
    return shown(row)


def give_up_upload(session: Session, tenant: str, file_id: str) -> None:
    """Forgets what has come of it. Done once or more often."""
    row = _upload(session, tenant, file_id)
    if row is not None:
        _remove(session, row)


def find_file(session: Session, tenant: str, file_id: str) -> FileRow:
    """A whole file of this tenant. Raises Rejected: it has none of this id."""
    row = session.scalar(_files(tenant).where(FileRow.id == file_id, FileRow.is_whole))
    if row is None:
        raise not_found("file", file_id)
    return row


def list_files(session: Session, tenant: str, wanted: Listing, purpose: str | None) -> FilePage:
    """The whole files of a tenant. Raises Rejected: `after` is none of them."""
    query = _files(tenant).where(FileRow.is_whole)
    if purpose is not None:
        query = query.where(FileRow.purpose == purpose)
    if wanted.after is not None:
        mark = find_file(session, tenant, wanted.after).number
        query = query.where(FileRow.number < mark if wanted.newest_first else FileRow.number > mark)
    rows = session.scalars(query.order_by(by_age(FileRow.number, wanted)).limit(wanted.limit + 1)).all()
    return paged(FilePage, [shown(row) for row in rows], wanted)


def delete_file(session: Session, tenant: str, file_id: str) -> FileDeleted:
    """Removes a file; of one that shows results, the results. Raises Rejected: an open batch reads it, or no such."""
    row = find_file(session, tenant, file_id)
    reader = session.scalar(
        select(BatchRow.id).where(BatchRow.input_file_id == file_id, BatchRow.status.in_(OPEN_STATUSES)).limit(1)
    )
    if reader is not None:
        raise Rejected(
            f"the file is the input of {reader}, which has not ended; cancel that first",
            param="file_id",
            reason=RejectReason.IN_USE,
        )
    _remove(session, row)
    return FileDeleted(id=file_id)


def remove_old(session: Session, now_s: int) -> None:
    """Removes files whose time is over, unless an open batch reads them, and uploads that never came to an end."""
    is_old = (FileRow.expires_s <= now_s) & FileRow.is_whole & ~_is_read(FileRow.id)
    is_stale = ~FileRow.is_whole & (FileRow.created_s < now_s - STALE_UPLOAD_S)
    for row in session.scalars(select(FileRow).where(is_old | is_stale)).all():
        _remove(session, row)


def remove_uploads(session: Session) -> None:
    """Removes all that have not ended: a new owner has not begun any yet."""
    for row in session.scalars(select(FileRow).where(~FileRow.is_whole)).all():
        _remove(session, row)


def read_content(session: Session, tenant: str, file_id: str, cursor: int) -> ContentPage:
    """Some of a file's content, from `cursor` on, 0 at first. Raises Rejected: the tenant has no such file."""
    row = find_file(session, tenant, file_id)
    if row.shows_batch is not None:
        return _results(session, row.shows_batch, row.shows_errors, cursor)
    content = _chunk(session, row.number, cursor)
    return ContentPage(content or b"", cursor + 1 if cursor + 1 < row.num_chunks else None)


def read_chunks(session: Session, file_id: str) -> Iterator[bytes]:
    """An uploaded file's content, chunk by chunk."""
    number, num_chunks = _uploaded(session, file_id)
    for position in range(num_chunks):
        yield _chunk(session, number, position) or b""


def read_slice(session: Session, file_id: str, start: int, num_bytes: int) -> bytes:
    """Part of an uploaded file."""
    number, _ = _uploaded(session, file_id)
    first, last = start // CHUNK_BYTES, (start + num_bytes - 1) // CHUNK_BYTES
    content = b"".join(_chunk(session, number, position) or b"" for position in range(first, last + 1))
    return content[start - first * CHUNK_BYTES :][:num_bytes]


def shown(row: FileRow) -> FileObject:
    """As its tenant sees it."""
    return FileObject(
        id=row.id,
        bytes=row.num_bytes,
        created_at=row.created_s,
        expires_at=row.expires_s,
        filename=row.filename,
        purpose="batch" if row.purpose == "batch" else "batch_output",
    )


def not_found(what: str, its_id: str) -> Rejected:
    """There is none of this id, or it is another tenant's: nobody learns which."""
    return Rejected(f"there is no {what} {its_id!r}", param=f"{what}_id", reason=RejectReason.NOT_FOUND)


def new_id(prefix: str) -> str:
    """An id that nobody guesses."""
    return prefix + secrets.token_hex(12)


def paged(page: Callable[..., Page], found: Sequence[FileObject | BatchObject], wanted: Listing) -> Page:
    """A page of what was found, which is one more than is wanted where there is more."""
    data = tuple(found[: wanted.limit])
    first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
    return page(data=data, first_id=first_id, last_id=last_id, has_more=len(found) > wanted.limit)


def by_age(number: Any, wanted: Listing) -> ColumnElement[Any]:
    """The order of a listing."""
    ordered: ColumnElement[Any] = number.desc() if wanted.newest_first else number.asc()
    return ordered


def _upload(session: Session, tenant: str, file_id: str) -> FileRow | None:
    """One that has not ended; None: there is no such."""
    return session.scalar(_files(tenant).where(FileRow.id == file_id, ~FileRow.is_whole))


def _given_up() -> Rejected:
    return Rejected("the upload was given up; send the file again")


def _files(tenant: str) -> Select[FileRow]:
    return select(FileRow).where(FileRow.tenant == tenant)


def _is_read(file_id: Any) -> ColumnElement[bool]:
    return (
        select(BatchRow.number)
        .where(BatchRow.input_file_id == file_id, BatchRow.status.in_(OPEN_STATUSES))
        .correlate(FileRow)
        .exists()
    )


def _check_room(session: Session, tenant: str, settings: BatchSettings) -> None:
    """Files, and the results of open batches, which no file shows yet."""
    size, count = session.execute(
        select(func.coalesce(func.sum(FileRow.num_bytes), 0), func.count()).where(FileRow.tenant == tenant)
    ).one()
    results = session.scalar(
        select(func.coalesce(func.sum(BatchRow.completed_bytes + BatchRow.failed_bytes), 0)).where(
            BatchRow.tenant == tenant, BatchRow.status.in_(OPEN_STATUSES)
        )
    )
    if size + count * ROW_BYTES + (results or 0) > settings.max_tenant_bytes:
        raise Rejected(
            f"your files and results would come to more than the limit of {settings.max_tenant_bytes} bytes; delete "
            "some first",
            param="file",
            reason=RejectReason.TOO_LARGE,
        )


def _uploaded(session: Session, file_id: str) -> tuple[int, int]:
    number, num_chunks = session.execute(select(FileRow.number, FileRow.num_chunks).where(FileRow.id == file_id)).one()
    return number, num_chunks


def _chunk(session: Session, file: int, position: int) -> bytes | None:
    return session.scalar(select(ChunkRow.content).where(ChunkRow.file == file, ChunkRow.position == position))


def _results(session: Session, batch: int, shows_errors: bool, after: int) -> ContentPage:
    """Results in the order of their lines; `after` is the number of the last one that was read."""
    query = (
        select(LineRow.number, LineRow.result)
        .where(LineRow.batch == batch, LineRow.number > after, _is_shown(shows_errors))
        .order_by(LineRow.number)
    )
    content = bytearray()
    with session.execute(query, execution_options={"yield_per": LINES_AT_ONCE}) as rows:
        for number, result in rows:
            content += result or b""
            if len(content) >= CHUNK_BYTES:
                return ContentPage(bytes(content), number)
    return ContentPage(bytes(content), None)


def _is_shown(shows_errors: bool) -> ColumnElement[bool]:
    if shows_errors:
        return LineRow.outcome.in_((LineOutcome.FAILED.value, LineOutcome.EXPIRED.value))
    return LineRow.outcome == LineOutcome.COMPLETED.value


def _remove(session: Session, row: FileRow) -> None:
    if row.shows_batch is not None:
        session.execute(delete(LineRow).where(LineRow.batch == row.shows_batch, _is_shown(row.shows_errors)))
        shown_as = BatchRow.error_file_id if row.shows_errors else BatchRow.output_file_id
        session.execute(update(BatchRow).where(shown_as == row.id).values({shown_as: None}))
    session.execute(delete(ChunkRow).where(ChunkRow.file == row.number))
    session.delete(row)
