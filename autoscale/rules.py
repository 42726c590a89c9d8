"""The alert rules, and what becomes of them from one evaluation to the next. Pure: no clock, no log, no metric.

An alert is one rule, for one class where the rule is by class. Its life is that of Prometheus' alerts, so that the rule
file and the controller fire and clear in the same periods:

    condition holds  ->  pending  -- holds in hold_periods evaluations in a row ->  firing
    pending, fails   ->  gone
    firing, fails in recovery_periods evaluations in a row  ->  cleared, and kept for a while as history

What is not known counts as false, as in Prometheus an expression without a result does. So an alert whose data goes
missing clears as if all were well, after its recovery periods: that data is missing is told by other means
(`StatusReport.is_complete`; a failed scrape), not by an alert that nothing supports any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoscale.signals import (
    GPU_UTILISATION,
    KV_HIT_RATIO,
    MEAN_BATCH_SIZE,
    NUM_WAITING,
    PREEMPTIONS_PER_MINUTE,
    TBT_P99,
    TTFT_P99,
    Bound,
    Side,
    Timing,
)
from autoscale.view import FleetView
from slo.priority import PriorityClass
from slo.settings import Settings
from slo.settings.alerts import AlertRuleSettings
from slo.status import AlertReport, AlertState, class_label

AlertKey = tuple[str, PriorityClass | None]

TBT_BREACH = "tbt_breach"
PREEMPTION_STORM = "preemption_storm"
LOW_BATCHING = "low_batching"
TTFT_HIGH = "ttft_high"
KV_HIT_LOW = "kv_hit_low"
BATCH_SIZE_LOW = "batch_size_low"
SCALING_FAILED = "scaling_failed"
"""Told like an alert, but no rule over a view: the controller itself knows that replicas cannot be read or set."""
SCALING_FAILED_SEVERITY = "critical"
SCALING_FAILED_MESSAGE = "The number of replicas cannot be read or set"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert's condition and terms. `bound` gives its value and threshold; `provided` must be crossed as well."""

    name: str
    priority: PriorityClass | None
    bound: Bound
    provided: tuple[Bound, ...]
    hold_periods: int
    recovery_periods: int
    severity: str
    message: str

    @property
    def key(self) -> AlertKey:
        return self.name, self.priority

    def is_true(self, view: FleetView) -> bool:
        """Whether the condition holds in this view; not whether the alert fires."""
        return all(bound.is_crossed(view) for bound in (self.bound, *self.provided))

    def promql(self, timing: Timing) -> str:
        """The same condition; its sample's value is that of `bound`, and it has no labels."""
        return " and ".join(bound.promql(timing) for bound in (self.bound, *self.provided))


def alert_rules(settings: Settings) -> tuple[AlertRule, ...]:
    """The rules that are enabled, in the settings' order; those by class for each class with a promised target."""
    alerts = settings.alerts
    storm, batching = alerts.preemption_storm, alerts.low_batching
    hits, batch = alerts.kv_hit_low, alerts.batch_size_low
    min_batch = batch.min_slots_ratio * settings.engine.max_num_seqs
    return (
        *_tbt_breaches(settings),
        *_rule(PREEMPTION_STORM, storm, Bound(PREEMPTIONS_PER_MINUTE, Side.ABOVE, storm.max_per_minute)),
        *_rule(
            LOW_BATCHING,
            batching,
            Bound(GPU_UTILISATION, Side.BELOW, batching.min_gpu_ratio),
            Bound(NUM_WAITING, Side.ABOVE, batching.max_waiting),
        ),
        *_ttft_highs(settings),
        *_rule(KV_HIT_LOW, hits, Bound(KV_HIT_RATIO, Side.BELOW, hits.min_ratio)),
        *_rule(
            BATCH_SIZE_LOW,
            batch,
            Bound(MEAN_BATCH_SIZE, Side.BELOW, min_batch),
            Bound(NUM_WAITING, Side.ABOVE, batch.max_waiting),
        ),
    )


def _tbt_breaches(settings: Settings) -> Iterator[AlertRule]:
    rule = settings.alerts.tbt_breach
    for priority in PriorityClass:
        targets = settings.scheduler.targets.of(priority)
        if targets.promised and targets.tbt_p99_ms is not None:
            limit_s = rule.target_ratio * targets.tbt_p99_ms / 1000
            yield from _rule(TBT_BREACH, rule, Bound(TBT_P99[priority], Side.ABOVE, limit_s), priority=priority)


def _ttft_highs(settings: Settings) -> Iterator[AlertRule]:
    rule = settings.alerts.ttft_high
    for priority in PriorityClass:
        targets = settings.scheduler.targets.of(priority)
        if targets.promised and targets.ttft_p99_ms is not None:
            bound = Bound(TTFT_P99[priority], Side.ABOVE, rule.max_ms / 1000)
            yield from _rule(TTFT_HIGH, rule, bound, priority=priority)


def _rule(
    name: str, settings: AlertRuleSettings, bound: Bound, *provided: Bound, priority: PriorityClass | None = None
) -> Iterator[AlertRule]:
    if settings.enabled:
        yield AlertRule(
            name,
            priority,
            bound,
            provided,
            settings.hold_periods,
            settings.recovery_periods,
            settings.severity,
            settings.message,
        )


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert in one of its states."""

    rule: AlertRule
    state: AlertState
    since_s: float
    """When it came to its state, by the clock of the views."""
    value: float | None
    """At the latest evaluation; None where it was not known."""
    num_periods: int
    """Evaluations in a row: for which a pending one's condition has held, for which a firing one's has failed."""

    def report(self, model: str, now_s: float) -> AlertReport:
        """As it is told; `model`: the name of the fleet's."""
        priority = self.rule.priority
        return AlertReport(
            model=model,
            name=self.rule.name,
            severity=self.rule.severity,
            state=self.state,
            priority_class=None if priority is None else class_label(priority),
            value=self.value,
            threshold=self.rule.bound.limit,
            unit=self.rule.bound.signal.unit,
            message=self.rule.message,
            since_ago_s=now_s - self.since_s,
        )


@dataclass(frozen=True, slots=True)
class AlertBook:
    """All alerts after an evaluation: `active` are pending or firing; `cleared` fired before, the newest first."""

    active: tuple[Alert, ...] = ()
    cleared: tuple[Alert, ...] = ()

    @property
    def firing(self) -> tuple[Alert, ...]:
        return tuple(alert for alert in self.active if alert.state is AlertState.FIRING)

    def is_firing(self, name: str, priority: PriorityClass | None = None) -> bool:
        """Of a rule by class: for `priority`, or for any class where that is None."""
        return any(a.rule.name == name and priority in (None, a.rule.priority) for a in self.firing)

    def firing_classes(self, name: str) -> frozenset[PriorityClass]:
        """The classes for which `name`, a rule by class, fires: of TBT_BREACH, what the scaling policy asks for."""
        return frozenset(a.rule.priority for a in self.firing if a.rule.name == name and a.rule.priority is not None)

    def reports(self, model: str, now_s: float) -> tuple[AlertReport, ...]:
        """Firing, pending, then cleared ones, as `GET /v1/alerts` gives them."""
        pending = [alert for alert in self.active if alert.state is AlertState.PENDING]
        return tuple(alert.report(model, now_s) for alert in (*self.firing, *pending, *self.cleared))

    def check_invariants(self) -> None:
        """Raises AssertionError unless the book holds together."""
        for alerts in (self.active, self.cleared):
            keys = [alert.rule.key for alert in alerts]
            assert len(set(keys)) == len(keys), f"an alert twice: {keys}"
        assert not {a.rule.key for a in self.firing} & {a.rule.key for a in self.cleared}, "firing, and cleared"
        for alert in self.active:
            match alert.state:
                case AlertState.PENDING:
                    assert 1 <= alert.num_periods < alert.rule.hold_periods, alert
                case AlertState.FIRING:
                    assert 0 <= alert.num_periods < alert.rule.recovery_periods, alert
                case AlertState.CLEARED:
                    raise AssertionError(f"cleared, but active: {alert}")
        assert all(alert.state is AlertState.CLEARED for alert in self.cleared)
        times_s = [alert.since_s for alert in self.cleared]
        assert times_s == sorted(times_s, reverse=True), "the newest comes first"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The book after an evaluation, and what it changed."""

    book: AlertBook
    fired: tuple[Alert, ...] = ()
    cleared: tuple[Alert, ...] = ()


def evaluate(rules: Sequence[AlertRule], view: FleetView, book: AlertBook, cleared_kept_s: float) -> Evaluation:
    """The next book. Once a period: each call counts as one.

    An alert whose rule is no longer among `rules` is dropped, silently. Of what cleared, the last time of each alert is
    kept for `cleared_kept_s`, or until it fires again.
    """
    before = {alert.rule.key: alert for alert in book.active}
    after = [alert for rule in rules if (alert := _next(rule, before.get(rule.key), view)) is not None]
    active = tuple(alert for alert in after if alert.state is not AlertState.CLEARED)
    cleared = tuple(alert for alert in after if alert.state is AlertState.CLEARED)
    fired = tuple(a for a in active if a.state is AlertState.FIRING and _is_new(a, before))
    outdated = {alert.rule.key for alert in (*cleared, *fired)}
    kept = tuple(
        alert
        for alert in book.cleared
        if alert.rule.key not in outdated and view.now_s - alert.since_s <= cleared_kept_s
    )
    return Evaluation(AlertBook(active, cleared + kept), fired, cleared)


def _is_new(alert: Alert, before: dict[AlertKey, Alert]) -> bool:
    return alert.rule.key not in before or before[alert.rule.key].state is not alert.state


def _next(rule: AlertRule, before: Alert | None, view: FleetView) -> Alert | None:
    """The alert after this evaluation; None while there is nothing to tell."""
    value, is_true, now_s = rule.bound.signal.read(view), rule.is_true(view), view.now_s
    if before is not None and before.state is AlertState.FIRING:
        num_false = 0 if is_true else before.num_periods + 1
        if num_false < rule.recovery_periods:
            return replace(before, rule=rule, value=value, num_periods=num_false)
        return Alert(rule, AlertState.CLEARED, now_s, value, num_false)
    if not is_true:
        return None
    num_true = 1 if before is None else before.num_periods + 1
    if num_true >= rule.hold_periods:
        return Alert(rule, AlertState.FIRING, now_s, value, 0)
    return Alert(rule, AlertState.PENDING, now_s if before is None else before.since_s, value, num_true)
