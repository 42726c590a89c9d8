"""The number of replicas, in a closed loop: what a controller sees, its policy, and what becomes of the target."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from autoscale.policy import ScalingRules, decide
from autoscale.rules import TBT_BREACH, AlertBook, alert_rules, evaluate
from autoscale.scaling_state import ScalingState
from autoscale.view import ClassView, FleetView, ReplicaCounts
from sim.fleet import Fleet
from sim.replica import Replica
from sim.token_log import Mark, TokenLog, weighted_percentiles
from slo.priority import PriorityClass
from slo.settings import Settings

PERCENT = 99


class ScalingPolicy(Protocol):
    """Says how many replicas there should be; None: as many as there are."""

    period_s: float

    def target(self, fleet: Fleet, target: int) -> int | None:
        """Called once a period, with the target in force."""
        ...


@dataclass(slots=True)
class Scaler:
    """Puts a policy's targets into effect. `new_replica` makes one, by number, when it is asked for, and its time."""

    fleet: Fleet
    policy: ScalingPolicy
    new_replica: Callable[[int], Replica]
    target: int

    def begin(self) -> None:
        """The first look is after one period."""
        self.fleet.plan(self.fleet.now_s + self.policy.period_s, self._look)

    def _look(self) -> None:
        self.fleet.catch_up()
        target = self.policy.target(self.fleet, self.target)
        if target is not None:
            self.target = target
            self._apply()
        self.fleet.plan(self.fleet.now_s + self.policy.period_s, self._look)

    def _apply(self) -> None:
        there = [r for r in self.fleet.replicas if r.gone_s is None and not r.is_draining]
        for _ in range(self.target - len(there)):
            self.fleet.add_replica(self.new_replica(len(self.fleet.replicas)))
        # Those that have not come up go first, then those with the least to finish.
        order = sorted(there, key=lambda r: (r.ready_s <= self.fleet.now_s, r.num_ongoing, -r.number))
        for replica in order[: max(0, len(there) - self.target)]:
            self.fleet.drain(replica)


class ByPromises:
    """The product's own: `autoscale.policy`, with its alert rules, over a window of the log."""

    def __init__(self, settings: Settings, log: TokenLog) -> None:
        self.period_s = settings.autoscale.period_s
        self._settings = settings
        self._rules = ScalingRules.of(settings)
        self._alerts = alert_rules(settings)
        self._book = AlertBook()
        self._state = ScalingState()
        self._log = log
        num_periods = round(settings.autoscale.window_s / self.period_s)
        self._marks: deque[Mapping[PriorityClass, Mark]] = deque([_marks_of(log)], maxlen=num_periods)

    def target(self, fleet: Fleet, target: int) -> int | None:
        """See `ScalingPolicy`."""
        view = self._view(fleet, target)
        self._book = evaluate(self._alerts, view, self._book, self._settings.alerts.cleared_kept_s).book
        breaches = frozenset(c for c in PriorityClass if self._book.is_firing(TBT_BREACH, c))
        decision, self._state = decide(view, breaches, self._state, self._rules, fleet.now_s)
        self._marks.append(_marks_of(self._log))
        return decision.target

    def _view(self, fleet: Fleet, target: int) -> FleetView:
        since, seconds = self._marks[0], len(self._marks) * self.period_s
        there = [r for r in fleet.replicas if r.gone_s is None]
        running = [r for r in there if r.is_serving(fleet.now_s)]
        draining = [r for r in there if r.is_draining]
        return FleetView(
            now_s=fleet.now_s,
            window_s=self._settings.autoscale.window_s,
            classes={c: self._class_view(c, since[c], seconds, there, fleet.num_queued(c)) for c in PriorityClass},
            replicas=ReplicaCounts(
                target, len(running), len(there) - len(running) - len(draining), len(draining), len(running)
            ),
            is_complete=True,
            num_without_replica=fleet.num_without_replica,
            slots_per_replica=self._settings.engine.max_num_seqs,
        )

    def _class_view(
        self, priority: PriorityClass, since: Mark, seconds: float, there: list[Replica], num_queued: int
    ) -> ClassView:
        log, now = self._log, self._log.mark(priority)
        values, weights = log.gaps_s(priority, since)
        ttfts_s = sorted(log.ttfts_s(priority, since))
        states = [r.states(priority) for r in there]
        return ClassView(
            ttft_p99_s=ttfts_s[int((len(ttfts_s) - 1) * PERCENT / 100)] if ttfts_s else None,
            tbt_p99_s=weighted_percentiles(values, weights, (PERCENT,))[0] if values.size else None,
            arrivals_per_s=(now.num_arrived - since.num_arrived) / seconds,
            completions_per_s=(now.num_completed - since.num_completed) / seconds,
            starts_per_s=(now.num_first - since.num_first) / seconds,
            num_running=sum(running for running, _, _ in states),
            num_waiting=sum(waiting for _, waiting, _ in states) + num_queued,
            num_paused=sum(paused for _, _, paused in states),
        )


def _marks_of(log: TokenLog) -> Mapping[PriorityClass, Mark]:
    return {c: log.mark(c) for c in PriorityClass}
