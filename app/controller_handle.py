"""The controller over a Ray Serve handle, as the ingress asks it: `app.operator.Operator`, `app.gate.fleet.Fleet`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from app.handle_answers import told_by
from slo.errors import ControllerAway, Rejected
from slo.status import AlertsReport, StatusReport

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

Told = TypeVar("Told")


class ServeOperator:
    """Asks over a handle to the controller's deployment; each answer is bounded by `answer_timeout_s`."""

    def __init__(self, controller: DeploymentHandle[Any], answer_timeout_s: float) -> None:
        self._controller = controller
        self._answer_timeout_s = answer_timeout_s

    async def metrics(self) -> str:
        """See `Operator.metrics`."""
        text: str = await self._told(self._controller.metrics.remote())
        return text

    async def status(self, model: str | None) -> StatusReport:
        """See `Operator.status`."""
        report: StatusReport = await self._told(self._controller.status.remote(model))
        return report

    async def alerts(self) -> AlertsReport:
        """See `Operator.alerts`."""
        report: AlertsReport = await self._told(self._controller.alerts.remote())
        return report

    async def num_running_replicas(self, model: str) -> int | None:
        """See `Fleet.num_running_replicas`."""
        running: int | None = await self._told(self._controller.num_running_replicas.remote(model))
        return running

    async def _told(self, answer: Awaitable[Told]) -> Told:
        passed_on = (ControllerAway, Rejected)
        return await told_by("the controller", answer, self._answer_timeout_s, ControllerAway, passed_on)
