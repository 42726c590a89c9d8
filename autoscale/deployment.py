"""The controller as a Serve deployment: one replica, health-checked, started again by Serve when it dies or is stuck.

Owns the process: its event loop's task and its HTTP client. What it does is in fleets.py and controller.py; what it
talks to Serve and Ray with is in collector.py, actuator.py and memory.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx
from ray import serve

from autoscale.actuator import ServeActuator, dashboard_url
from autoscale.collector import ServeCollector
from autoscale.controller import ControlLoop
from autoscale.fleets import Fleets
from autoscale.memory import RayMemory
from slo.logs import ModelLog, configure_logging
from slo.settings import Settings
from slo.status import AlertsReport, StatusReport

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

logger = logging.getLogger("expresslane.autoscale")


class Controller:
    """Watches each model's fleet and scales it. Called by the ingress over a Serve handle.

    Args:
        replicas: the handles of the replica deployments, by their models' first names.
        ingress: the name of the ingress's deployment. Its handle cannot be bound: the ingress has this one's.
        batches: that of the owner of the batches, which may not be there before the ingress is; None: there is none.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        settings: Settings,
        replicas: dict[str, DeploymentHandle[Any]],
        ingress: str,
        batches: str | None = None,
    ) -> None:
        configure_logging()
        self._client = httpx.AsyncClient(timeout=settings.controller.serve_timeout_s)
        of_models = settings.by_model
        first = next(iter(replicas))  # what concerns no model counts with it
        self._fleets = Fleets(
            {
                model: self._loop(model, of_models[model], handle, ingress, batches if model == first else None)
                for model, handle in replicas.items()
            }
        )
        self._task = asyncio.get_running_loop().create_task(self._fleets.run(), name="control loops")

    def _loop(
        self, model: str, settings: Settings, replicas: DeploymentHandle[Any], ingress: str, batches: str | None
    ) -> ControlLoop:
        limits, application = settings.controller, replicas.app_name
        collector = ServeCollector(
            lambda: replicas,
            lambda: serve.get_deployment_handle(ingress, application),
            min(limits.answer_timeout_s, settings.autoscale.period_s),
            model,
            batches=None if batches is None else lambda: serve.get_deployment_handle(batches, application),
        )
        find_url = dashboard_url if limits.dashboard_url is None else _always(limits.dashboard_url.rstrip("/"))
        actuator = ServeActuator(self._client, application, replicas.deployment_name, find_url=find_url)
        memory = RayMemory(f"{application}/{replicas.deployment_name}")
        ModelLog(logger, model).info(
            "mode=%s period_s=%g reason=started", settings.autoscale.mode, settings.autoscale.period_s
        )
        return ControlLoop(settings, collector, actuator, memory)

    async def check_health(self) -> None:
        """Called by Serve. Raises RuntimeError when the loop has ended, or does not get through a period."""
        if self._task.done():
            raise RuntimeError("a control loop has ended")
        self._fleets.check_alive()

    async def status(self, model: str | None = None) -> StatusReport:
        """See `Fleets.status`."""
        return self._fleets.status(model)

    async def num_running_replicas(self, model: str) -> int | None:
        """See `Fleets.num_running_replicas`. Each ingress process asks for each model once a second or so."""
        return self._fleets.num_running_replicas(model)

    async def alerts(self) -> AlertsReport:
        """See `Fleets.alerts`."""
        return self._fleets.alerts()

    async def metrics(self) -> str:
        """See `Fleets.metrics`."""
        return self._fleets.metrics()

    def __del__(self) -> None:
        """Called by Serve at the end of a graceful shutdown."""
        if (task := getattr(self, "_task", None)) is not None:
            task.cancel()


def _always(url: str) -> Callable[[], Awaitable[str]]:
    async def find() -> str:
        return url

    return find
