"""What operators are told, made of one period's look at the fleet. Pure: a look and the time in, reports out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscale.exposition import Exposed, fleet_gauges, target_gauges
from autoscale.policy import ScalingReason
from autoscale.rules import SCALING_FAILED, SCALING_FAILED_MESSAGE, SCALING_FAILED_SEVERITY, AlertBook, AlertRule
from autoscale.scaling import Change, Fault
from autoscale.series import Series, Totals
from autoscale.summary import ServedReplicas, attainment, counted_engines, per_second
from autoscale.view import FleetView
from autoscale.window import Answer, Recent
from slo import metrics
from slo.priority import PriorityClass
from slo.settings import Settings
from slo.snapshots import EngineSnapshot
from slo.status import (
    AlertReport,
    AlertsReport,
    AlertState,
    ClassReport,
    DecisionReport,
    ReplicaCountsReport,
    ReplicaReport,
    StatusReport,
    class_label,
)


@dataclass(frozen=True, slots=True)
class Look:
    """One period's look at the fleet: what was told, what is seen of it, what is alerted, what was decided.

    Attributes:
        changes: of the target, the latest first.
    """

    recent: Recent
    served: ServedReplicas | None
    view: FleetView
    book: AlertBook
    changes: tuple[Change, ...]
    num_changes: Mapping[ScalingReason, int]
    fault: Fault | None


def alerts_report(look: Look, settings: Settings, now_s: float) -> AlertsReport:
    """All alerts; a fault of scaling comes first."""
    model = settings.model.served_names[0]
    fault = () if look.fault is None else (_fault_report(look.fault, model, now_s),)
    return AlertsReport(alerts=(*fault, *look.book.reports(model, now_s)))


def status_report(look: Look, settings: Settings, started_s: float, now_s: float) -> StatusReport:
    """The fleet as `/v1/status` tells it, of an application with this model alone."""
    view, autoscale, model = look.view, settings.autoscale, settings.model.served_names[0]
    return StatusReport(
        model=model,
        models=(model,),
        mode=autoscale.mode,
        up_s=now_s - started_s,
        period_s=autoscale.period_s,
        window_s=autoscale.window_s,
        is_complete=view.is_complete,
        counts=_counts_report(look.served, settings),
        replicas=tuple(_replica_report(a, settings, now_s) for a in _shown_engines(look)),
        classes=tuple(_class_report(look, settings, p) for p in PriorityClass),
        preemptions_per_minute=view.preemptions_per_minute,
        kv_hit_ratio=view.kv_hit_ratio,
        gpu_utilisation_ratio=view.gpu_utilisation_ratio,
        mean_batch_size=view.mean_batch_size,
        alerts=alerts_report(look, settings, now_s).alerts,
        decisions=tuple(_decision_report(c, now_s) for c in look.changes),
    )


def exposed(look: Look, settings: Settings, rules: Iterable[AlertRule]) -> Exposed:
    """What a scrape tells."""
    engines = counted_engines(look.recent, look.served)
    ingresses = [a.snapshot for a in look.recent.ingresses]
    batches = [a.snapshot for a in look.recent.batches]
    gauges = dict(fleet_gauges(look.view, ingresses, engines, batches))
    gauges |= dict(target_gauges(settings.scheduler.targets))
    gauges |= {Series(metrics.ALERT_FIRING, (name,)): firing for name, firing in _alerts_firing(look, rules).items()}
    decisions: dict[Series, float] = {
        Series(metrics.SCALING_DECISIONS, (reason.value,)): look.num_changes.get(reason, 0) for reason in ScalingReason
    }
    return Exposed(look.recent.totals + Totals(decisions), gauges)


def _alerts_firing(look: Look, rules: Iterable[AlertRule]) -> Mapping[str, float]:
    firing = {rule.name: float(look.book.is_firing(rule.name)) for rule in rules}
    return firing | {SCALING_FAILED: float(look.fault is not None)}


def _shown_engines(look: Look) -> Sequence[Answer[EngineSnapshot]]:
    answers = look.recent.engines if look.served is None else look.recent.engines[: look.served.running]
    return sorted(answers, key=lambda a: a.snapshot.source_id)


def _fault_report(fault: Fault, model: str, now_s: float) -> AlertReport:
    return AlertReport(
        model=model,
        name=SCALING_FAILED,
        severity=SCALING_FAILED_SEVERITY,
        state=AlertState.FIRING,
        priority_class=None,
        value=None,
        threshold=0,
        unit="",
        message=f"{SCALING_FAILED_MESSAGE}: {fault.message}",
        since_ago_s=now_s - fault.since_s,
    )


def _counts_report(served: ServedReplicas | None, settings: Settings) -> ReplicaCountsReport:
    bounds = settings.replica_bounds
    return ReplicaCountsReport(
        target=None if served is None else served.target,
        running=None if served is None else served.running,
        starting=None if served is None else served.starting,
        draining=None if served is None else served.draining,
        min_replicas=bounds.min_replicas,
        max_replicas=bounds.max_replicas,
    )


def _replica_report(answer: Answer[EngineSnapshot], settings: Settings, now_s: float) -> ReplicaReport:
    engine, age_s = answer.snapshot, now_s - answer.taken_s
    loads = engine.classes.values()
    return ReplicaReport(
        source_id=engine.source_id,
        age_s=age_s,
        is_fresh=age_s <= settings.autoscale.stale_after_s,
        num_running=sum(load.num_running for load in loads),
        num_waiting=sum(load.num_waiting for load in loads),
        max_num_seqs=engine.max_num_seqs,
        kv_used_ratio=engine.kv.num_used_blocks / engine.kv.num_blocks if engine.kv.num_blocks else 0.0,
        saturation_ratio=engine.saturation_ratio,
    )


def _class_report(look: Look, settings: Settings, priority: PriorityClass) -> ClassReport:
    seen, targets, label = look.view.classes[priority], settings.scheduler.targets.of(priority), class_label(priority)
    return ClassReport(
        priority_class=label,
        long_name=priority.long_name,
        ttft_p99_s=seen.ttft_p99_s,
        ttft_target_s=_seconds(targets.ttft_p99_ms),
        tbt_p99_s=seen.tbt_p99_s,
        tbt_target_s=_seconds(targets.tbt_p99_ms),
        promised=targets.promised,
        attainment_ratio=attainment(look.recent.grown, priority),
        goodput_per_s=per_second(look.recent, metrics.HELD, label),
        arrivals_per_s=seen.arrivals_per_s,
        num_running=seen.num_running,
        num_waiting=seen.num_waiting,
        num_paused=seen.num_paused,
        num_swapped=seen.num_swapped,
    )


def _decision_report(change: Change, now_s: float) -> DecisionReport:
    return DecisionReport(
        ago_s=now_s - change.at_s,
        from_replicas=change.from_replicas,
        to_replicas=change.to_replicas,
        reason=change.reason.value,
        detail=change.detail,
        dry_run=change.dry_run,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
