"""The controller as the ingress reaches it: `app.operator.Operator` over a Ray Serve handle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from slo.errors import ControllerAway
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

    async def status(self) -> StatusReport:
        """See `Operator.status`."""
        report: StatusReport = await self._told(self._controller.status.remote())
        return report

    async def alerts(self) -> AlertsReport:
        """See `Operator.alerts`."""
        report: AlertsReport = await self._told(self._controller.alerts.remote())
        return report

    async def _told(self, answer: Awaitable[Told]) -> Told:
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                return await answer
        except TimeoutError:
            raise ControllerAway("the controller did not answer in time") from None
        except RayTaskError as error:
            if isinstance(error.cause, ControllerAway):
                raise error.cause from None
            raise ControllerAway("the controller failed while answering; its log says why") from None
        except (RayError, BackPressureError, DeploymentUnavailableError):
            raise ControllerAway("the controller is not there; Serve starts it again") from None
