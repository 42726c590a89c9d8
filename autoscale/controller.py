"""The control loop: once a period collect, evaluate, decide, apply.

Owns the order of these and nothing else: every number is a setting, every rule is in a pure file. It survives whatever
goes wrong in one period, tells when it does not get through any more, and answers operators from its latest look.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from autoscale.exposition import Exposed
from autoscale.report import Look, alerts_report, exposed, status_report
from autoscale.rules import TBT_BREACH, Alert, AlertBook, alert_rules, evaluate
from autoscale.scaling import Actuator, Memory, Scaling
from autoscale.summary import fleet_view
from autoscale.view import FleetView
from autoscale.window import Collection, Window
from slo.errors import ControllerAway
from slo.logs import ModelLog
from slo.priority import PriorityClass
from slo.settings import Settings
from slo.status import AlertsReport, AlertState, StatusReport

logger = logging.getLogger("expresslane.autoscale")


class Collector(Protocol):
    """Where snapshots come from. Called by the control loop once a period."""

    async def collect(self) -> Collection:
        """What answers in time; raises nothing because of one that does not."""
        ...


class ControlLoop:
    """One fleet's controller. Everything runs on one event loop; `run` is its only writer."""

    def __init__(
        self,
        settings: Settings,
        collector: Collector,
        actuator: Actuator,
        memory: Memory,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        autoscale = settings.autoscale
        self._settings = settings
        self._log = ModelLog(logger, settings.model.served_names[0])
        self._collector = collector
        self._clock = clock
        self._sleep = sleep
        self._window = Window(autoscale.window_s, autoscale.period_s, autoscale.stale_after_s)
        self._rules = alert_rules(settings)
        self._book = AlertBook()
        self._scaling = Scaling(settings, actuator, memory, clock)
        self._started_s = self._got_through_s = clock()
        self._look: Look | None = None
        self.num_failed_periods = 0

    async def run(self) -> None:
        """Period after period, until cancelled. One that takes longer than a period is followed at once by the next."""
        while True:
            started_s = self._clock()
            try:
                await self.tick()
                self._got_through_s = self._clock()
            except Exception:
                self.num_failed_periods += 1
                self._log.exception("reason=period_failed num_failed=%d", self.num_failed_periods)
            await self._sleep(max(0.0, started_s + self._settings.autoscale.period_s - self._clock()))

    async def tick(self) -> None:
        """One period."""
        collection, served = await asyncio.gather(self._collector.collect(), self._scaling.read())
        recent = self._window.add(collection, self._clock())
        view = fleet_view(recent, served, self._settings.autoscale.window_s)
        self._evaluate(view)
        breaches = {p for p in PriorityClass if self._book.is_firing(TBT_BREACH, p)}
        try:
            await self._scaling.act(view, breaches)
        finally:
            scaling = self._scaling
            changes, num_changes = tuple(scaling.changes), dict(scaling.num_changes)
            self._look = Look(recent, served, view, self._book, changes, num_changes, scaling.fault)

    def check_alive(self) -> None:
        """Raises RuntimeError when no period has been got through for too long."""
        silent_s = self._clock() - self._got_through_s
        limit_s = self._settings.controller.stuck_after_s + self._settings.autoscale.period_s
        if silent_s > limit_s:
            raise RuntimeError(f"no period was got through for {silent_s:.0f} s, which is more than {limit_s:.0f} s")

    def status(self) -> StatusReport:
        """The fleet. Raises ControllerAway before the first look at it."""
        return status_report(self._latest(), self._settings, self._started_s, self._clock())

    def num_running_replicas(self) -> int | None:
        """By the latest look; None when it could not tell. Raises ControllerAway before the first look."""
        served = self._latest().served
        return None if served is None else served.running

    def alerts(self) -> AlertsReport:
        """All alerts. Raises ControllerAway before the first look at the fleet."""
        return alerts_report(self._latest(), self._settings, self._clock())

    def exposed(self) -> Exposed:
        """What a scrape tells of the fleet. Raises ControllerAway before the first look at it."""
        return exposed(self._latest(), self._settings, self._rules)

    def check_invariants(self) -> None:
        """Raises AssertionError when the books do not add up."""
        self._window.check_invariants()
        self._book.check_invariants()

    def _latest(self) -> Look:
        if self._look is None:
            raise ControllerAway("the controller has just started and has not looked at the fleet yet")
        return self._look

    def _evaluate(self, view: FleetView) -> None:
        pending_before = {a.rule.key for a in self._book.active}
        evaluation = evaluate(self._rules, view, self._book, self._settings.alerts.cleared_kept_s)
        self._book = evaluation.book
        pending = (a for a in self._book.active if a.state is AlertState.PENDING and a.rule.key not in pending_before)
        for alert in (*pending, *evaluation.fired, *evaluation.cleared):
            self._log_alert(alert)

    def _log_alert(self, alert: Alert) -> None:
        self._log.log(
            logging.WARNING if alert.state is AlertState.FIRING else logging.INFO,
            "alert=%s class=%s state=%s value=%s threshold=%g",
            alert.rule.name,
            alert.rule.priority.name if alert.rule.priority else "all",
            alert.state.value,
            "none" if alert.value is None else f"{alert.value:.4g}",
            alert.rule.bound.limit,
        )
