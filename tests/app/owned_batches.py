"""Files and batches for the HTTP side: the real owner on a database of the test's, made when first asked.

At the seam `app.batch_api.Batches`. No line is answered: the owner's desk is away.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batch.database import Database
from batch.owner import BatchOwner
from batch.running import DeskAway
from slo.batch import LineAnswer, LineCall
from slo.settings import Settings


class AwayDesk:
    """No ingress answers."""

    async def answer(self, call: LineCall) -> LineAnswer:
        raise DeskAway(call.request_id)


class OwnedBatches:
    """Passes every call on. A new event loop gets a new owner on the same database, as each request of a test may
    come on a loop of its own."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._settings = settings.model_copy(
            update={"batch": settings.batch.model_copy(update={"path": str(directory / "batches.sqlite3")})}
        )
        self._database: Database | None = None

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            if self._database is None:
                self._database = Database()
                await self._database.take_over(self._settings.batch, BatchOwner.prepare)
            owner = BatchOwner(self._database, AwayDesk(), self._settings)
            try:
                return await getattr(owner, name)(*args)
            finally:
                owner.task.cancel()

        return call

    def close(self) -> None:
        """Lets go of the database."""
        if self._database is not None:
            self._database.close()
