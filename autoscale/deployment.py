"""The controller as a Serve deployment: one replica, health-checked, started again by Serve when it dies or is stuck.

Owns the process: its event loop's task and its HTTP client. What it does is in controller.py; what it talks to Serve
and Ray with is in collector.py, actuator.py and memory.py.
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
from autoscale.memory import RayMemory
from slo.logs import configure_logging
from slo.settings import Settings
from slo.status import AlertsReport, StatusReport

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

logger = logging.getLogger("expresslane.autoscale")


class Controller:
    """Watches the fleet and scales it. Called by the ingress over a Serve handle.

    Args:
        ingress: the name of the ingress's deployment. Its handle cannot be bound: the ingress has this one's.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: Settings, replicas: DeploymentHandle[Any], ingress: str
    ) -> None:
        configure_logging()
        limits, application = settings.controller, replicas.app_name
        self._client = httpx.AsyncClient(timeout=limits.serve_timeout_s)
        collector = ServeCollector(
            lambda: replicas,
            lambda: serve.get_deployment_handle(ingress, application),
            min(limits.answer_timeout_s, settings.autoscale.period_s),
        )
        find_url = dashboard_url if limits.dashboard_url is None else _always(limits.dashboard_url.rstrip("/"))
        actuator = ServeActuator(self._client, application, replicas.deployment_name, find_url=find_url)
        self._loop = ControlLoop(settings, collector, actuator, RayMemory(application))
        self._task = asyncio.get_running_loop().create_task(self._loop.run(), name="control loop")
        logger.info("mode=%s period_s=%g reason=started", settings.autoscale.mode, settings.autoscale.period_s)

    async def check_health(self) -> None:
        """Called by Serve. Raises RuntimeError when the loop has ended, or does not get through a period."""
        if self._task.done():
            raise RuntimeError("the control loop has ended")
        self._loop.check_alive()

    async def status(self) -> StatusReport:
        """See `ControlLoop.status`."""
        return self._loop.status()

    async def alerts(self) -> AlertsReport:
        """See `ControlLoop.alerts`."""
        return self._loop.alerts()

    async def metrics(self) -> str:
        """See `ControlLoop.metrics`."""
        return self._loop.metrics()

    def __del__(self) -> None:
        """Called by Serve at the end of a graceful shutdown."""
        if (task := getattr(self, "_task", None)) is not None:
            task.cancel()


def _always(url: str) -> Callable[[], Awaitable[str]]:
    async def find() -> str:
        return url

    return find
