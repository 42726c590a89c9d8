"""The tables. A change here needs a migration (`migrations`), and a test compares the two.

A file that a client uploaded has its content in chunks. One that shows a batch's results has none of its own: they are
its lines', which are written one by one as they end, so that nothing has to be put together at the end, or twice.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Number = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up by itself for INTEGER alone."""


class Base(DeclarativeBase):
    """What the tables have in common. Times are Unix seconds."""


class FileRow(Base):
    """One file. `number` orders them by age."""

    __tablename__ = "files"
    __table_args__ = (Index("ix_files_tenant", "tenant", "number"), {"sqlite_autoincrement": True})

    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    tenant: Mapped[str] = mapped_column(Text)
    filename: Mapped[str] = mapped_column(Text)
    purpose: Mapped[str] = mapped_column(String(32))
    num_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    num_chunks: Mapped[int] = mapped_column(Integer, default=0)
    created_s: Mapped[int] = mapped_column(BigInteger)
    expires_s: Mapped[int | None] = mapped_column(BigInteger)
    is_whole: Mapped[bool] = mapped_column(default=False)
    """False while it is uploaded: nobody sees it before."""
    shows_batch: Mapped[int | None] = mapped_column(ForeignKey("batches.number"))
    """The batch whose results it shows; null: it was uploaded."""
    shows_errors: Mapped[bool] = mapped_column(default=False)


class ChunkRow(Base):
    """A piece of an uploaded file: `slo.batch.CHUNK_BYTES`, but for the last one."""

    __tablename__ = "file_chunks"

    file: Mapped[int] = mapped_column(ForeignKey("files.number"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class BatchRow(Base):
    """One batch. The counts and bytes are of its lines that have ended, kept as they end."""

    __tablename__ = "batches"
    __table_args__ = (
        Index("ix_batches_tenant", "tenant", "number"),
        Index("ix_batches_status", "status"),
        {"sqlite_autoincrement": True},  # no number is given twice
    )

    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    tenant: Mapped[str] = mapped_column(Text)
    endpoint: Mapped[str] = mapped_column(String(64))
    input_file_id: Mapped[str] = mapped_column(String(64), index=True)
    completion_window: Mapped[str] = mapped_column(String(16))
    output_retention_s: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(String(16))
    client_metadata: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    faults: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    num_lines: Mapped[int] = mapped_column(Integer, default=0)
    num_completed: Mapped[int] = mapped_column(Integer, default=0)
    num_failed: Mapped[int] = mapped_column(Integer, default=0)
    completed_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    failed_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    output_file_id: Mapped[str | None] = mapped_column(String(64))
    error_file_id: Mapped[str | None] = mapped_column(String(64))
    created_s: Mapped[int] = mapped_column(BigInteger)
    expires_s: Mapped[int] = mapped_column(BigInteger)
    in_progress_s: Mapped[int | None] = mapped_column(BigInteger)
    finalizing_s: Mapped[int | None] = mapped_column(BigInteger)
    completed_s: Mapped[int | None] = mapped_column(BigInteger)
    failed_s: Mapped[int | None] = mapped_column(BigInteger)
    expired_s: Mapped[int | None] = mapped_column(BigInteger)
    cancelling_s: Mapped[int | None] = mapped_column(BigInteger)
    cancelled_s: Mapped[int | None] = mapped_column(BigInteger)


class LineRow(Base):
    """One line of a batch: where it lies in the input file, and, once it has ended, what became of it."""

    __tablename__ = "batch_lines"

    batch: Mapped[int] = mapped_column(ForeignKey("batches.number"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    custom_id: Mapped[str] = mapped_column(Text)
    start: Mapped[int] = mapped_column(BigInteger)
    num_bytes: Mapped[int] = mapped_column(Integer)
    outcome: Mapped[str | None] = mapped_column(String(16))
    result: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Its line of the output or error file, with the line end."""
