"""The owner of files and batches as a Serve deployment: one replica, health-checked, started again when it dies.

Owns the process: the database is opened here, and locked, so that a second owner waits until this one is gone. Lines
go over a Serve handle to the ingress, where they are treated like requests that came over HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from batch.database import Database, DatabaseInUse
from batch.owner import BatchOwner
from batch.running import DeskAway
from slo.batch import LineAnswer, LineCall
from slo.logs import configure_logging
from slo.settings import BatchSettings, Settings

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

logger = logging.getLogger("expresslane.batch")

STANDBY_S: Final = 1.0
"""Between two tries to own the database."""


class Batches(BatchOwner):
    """Called by the ingress and the controller over a Serve handle.

    While another process owns the database, as in an upgrade by a second cluster, this one waits for it to end, and
    answers BatchesAway.

    Args:
        ingress: the name of the ingress's deployment. Its handle cannot be bound: the ingress has this one's.

    Raises:
        DatabaseError: the database cannot be used; the message names the setting at fault.
    """

    async def __init__(self, settings: Settings, ingress: str) -> None:  # type: ignore[misc]  # Serve awaits it
        configure_logging()
        application = serve.get_replica_context().app_name
        database, self._standby = Database(), None
        super().__init__(database, ServeLineDesk(lambda: serve.get_deployment_handle(ingress, application)), settings)
        try:
            await database.take_over(settings.batch, self.prepare)
        except DatabaseInUse as error:
            logger.warning("reason=standby detail=%r", str(error))
            self._standby = asyncio.create_task(self._take_over_later(database, settings.batch), name="standby")

    async def check_health(self) -> None:
        """Called by Serve. Raises when the owner cannot go on."""
        if self._standby is not None and self._standby.done():
            self._standby.result()
        await asyncio.to_thread(self.check)

    def __del__(self) -> None:
        """Called by Serve at the end of a graceful shutdown. The process's end lets go of the database."""
        for task in (getattr(self, "task", None), getattr(self, "_standby", None)):
            if task is not None:
                task.cancel()

    async def _take_over_later(self, database: Database, settings: BatchSettings) -> None:
        while True:
            try:
                await database.take_over(settings, self.prepare)
                return
            except DatabaseInUse:
                await asyncio.sleep(STANDBY_S)


class ServeLineDesk:
    """Hands lines to an ingress process.

    Args:
        ingress: gives the handle. Called when first needed: Serve may not know the deployment yet.
    """

    def __init__(self, ingress: Callable[[], DeploymentHandle[Any]]) -> None:
        self._ingress = ingress

    async def answer(self, call: LineCall) -> LineAnswer:
        """See `LineDesk.answer`."""
        try:
            response = self._ingress().answer_line.remote(call)
            try:
                answer: LineAnswer = await response
            except asyncio.CancelledError:
                response.cancel()
                raise
        except (RayError, BackPressureError, DeploymentUnavailableError, RayServeException) as error:
            logger.info("request_id=%s reason=desk_away error=%s", call.request_id, type(error).__name__)
            raise DeskAway from None
        return answer
