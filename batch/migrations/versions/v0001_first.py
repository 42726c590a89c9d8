"""The first tables: files with their chunks, batches with their lines."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "batches",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.String(length=64), nullable=False),
        sa.Column("input_file_id", sa.String(length=64), nullable=False),
        sa.Column("completion_window", sa.String(length=16), nullable=False),
        sa.Column("output_retention_s", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("client_metadata", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("faults", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("num_lines", sa.Integer(), nullable=False),
        sa.Column("num_completed", sa.Integer(), nullable=False),
        sa.Column("num_failed", sa.Integer(), nullable=False),
        sa.Column("completed_bytes", sa.BigInteger(), nullable=False),
        sa.Column("failed_bytes", sa.BigInteger(), nullable=False),
        sa.Column("output_file_id", sa.String(length=64), nullable=True),
        sa.Column("error_file_id", sa.String(length=64), nullable=True),
        sa.Column("created_s", sa.BigInteger(), nullable=False),
        sa.Column("expires_s", sa.BigInteger(), nullable=False),
        sa.Column("in_progress_s", sa.BigInteger(), nullable=True),
        sa.Column("finalizing_s", sa.BigInteger(), nullable=True),
        sa.Column("completed_s", sa.BigInteger(), nullable=True),
        sa.Column("failed_s", sa.BigInteger(), nullable=True),
        sa.Column("expired_s", sa.BigInteger(), nullable=True),
        sa.Column("cancelling_s", sa.BigInteger(), nullable=True),
        sa.Column("cancelled_s", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_batches_input_file_id", "batches", ["input_file_id"], unique=False)
    op.create_index("ix_batches_status", "batches", ["status"], unique=False)
    op.create_index("ix_batches_tenant", "batches", ["tenant", "number"], unique=False)
    op.create_table(
        "batch_lines",
        sa.Column("batch", NUMBER, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("num_bytes", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch"],
            ["batches.number"],
        ),
        sa.PrimaryKeyConstraint("batch", "number"),
    )
    op.create_table(
        "files",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.String(length=32), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_chunks", sa.Integer(), nullable=False),
        sa.Column("created_s", sa.BigInteger(), nullable=False),
        sa.Column("expires_s", sa.BigInteger(), nullable=True),
        sa.Column("is_whole", sa.Boolean(), nullable=False),
        sa.Column("shows_batch", NUMBER, nullable=True),
        sa.Column("shows_errors", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["shows_batch"],
            ["batches.number"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_files_tenant", "files", ["tenant", "number"], unique=False)
    op.create_table(
        "file_chunks",
        sa.Column("file", NUMBER, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["file"],
            ["files.number"],
        ),
        sa.PrimaryKeyConstraint("file", "position"),
    )


def downgrade() -> None:
    """To an empty database."""
    op.drop_table("file_chunks")
    op.drop_index("ix_files_tenant", table_name="files")
    op.drop_table("files")
    op.drop_table("batch_lines")
    op.drop_index("ix_batches_tenant", table_name="batches")
    op.drop_index("ix_batches_status", table_name="batches")
    op.drop_index("ix_batches_input_file_id", table_name="batches")
    op.drop_table("batches")
