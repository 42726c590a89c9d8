"""Run by Alembic, for `batch.database`, over the connection that it gives."""

from alembic import context

from batch.tables import Base

# All or nothing, with SQLite too: a process that is killed half-way must leave what the next one can begin with.
context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, transactional_ddl=True
)
with context.begin_transaction():
    context.run_migrations()
