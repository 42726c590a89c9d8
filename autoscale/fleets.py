"""The control loops of several models' fleets, as one: what operators ask of them, and whether all go on.

Each loop sees and scales its own fleet, by its own settings; nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from autoscale.controller import ControlLoop
from autoscale.exposition import render, render_models
from slo.errors import Rejected, RejectReason
from slo.status import AlertsReport, AlertState, StatusReport

_ORDER: Final = (AlertState.FIRING, AlertState.PENDING, AlertState.CLEARED)


class Fleets:
    """All fleets of the application, by their models' first names; at least one. Used on one event loop."""

    def __init__(self, loops: Mapping[str, ControlLoop]) -> None:
        self._loops = loops

    async def run(self) -> None:
        """Runs every loop until cancelled."""
        await asyncio.gather(*(loop.run() for loop in self._loops.values()))

    def check_alive(self) -> None:
        """Raises RuntimeError when a loop does not get through its periods."""
        for loop in self._loops.values():
            loop.check_alive()

    def status(self, model: str | None) -> StatusReport:
        """The fleet of `model`, by default the first, with the alerts of all.

        Raises:
            Rejected: there is no such model.
            ControllerAway: before the first look at each.
        """
        report = self._of(model).status()
        return report.model_copy(update={"models": tuple(self._loops), "alerts": self.alerts().alerts})

    def num_running_replicas(self, model: str) -> int | None:
        """See `ControlLoop.num_running_replicas`. Raises as `status`."""
        return self._of(model).num_running_replicas()

    def alerts(self) -> AlertsReport:
        """Those of all fleets: what fires, what is pending, then what cleared. Raises ControllerAway."""
        alerts = [alert for loop in self._loops.values() for alert in loop.alerts().alerts]
        return AlertsReport(alerts=tuple(sorted(alerts, key=lambda alert: _ORDER.index(alert.state))))

    def metrics(self) -> str:
        """All fleets in Prometheus' text format. Raises ControllerAway before the first look at each."""
        if len(self._loops) == 1:
            (only,) = self._loops.values()
            return render(only.exposed())
        return render_models({model: loop.exposed() for model, loop in self._loops.items()})

    def _of(self, model: str | None) -> ControlLoop:
        if model is None:
            return next(iter(self._loops.values()))
        if model not in self._loops:
            raise Rejected(
                f"no model of that name; there are: {', '.join(self._loops)}", "model", RejectReason.UNKNOWN_MODEL
            )
        return self._loops[model]
