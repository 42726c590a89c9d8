"""From what the fleet told to what the rules and the policy see of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoscale.series import Totals
from autoscale.view import ClassView, FleetView, ReplicaCounts
from autoscale.window import Recent
from slo import metrics
from slo.histogram import HistogramCounts
from slo.metrics import Metric
from slo.outcome import Outcome
from slo.priority import PriorityClass
from slo.snapshots import ClassLoad, EngineSnapshot
from slo.status import class_label

P99 = 0.99
_NO_LOAD = ClassLoad()


@dataclass(frozen=True, slots=True)
class ServedReplicas:
    """The replicas as Serve tells them: those of the target, those that serve, start, or finish their streams."""

    target: int
    running: int
    starting: int
    draining: int


def fleet_view(recent: Recent, served: ServedReplicas | None, window_s: float) -> FleetView:
    """The fleet over the window.

    Args:
        served: None when Serve could not be asked.
        window_s: the window that is meant; rates are over the time that there really was.
    """
    engines = counted_engines(recent, served)
    return FleetView(
        now_s=recent.now_s,
        window_s=window_s,
        classes={p: _class_view(recent, engines, p) for p in PriorityClass},
        replicas=_replica_counts(served, len(engines)),
        is_complete=_is_complete(recent, served, len(engines)),
        num_without_replica=_num_in_flight(recent) if served is not None and served.running == 0 else 0,
        saturation_ratio=_mean([e.saturation_ratio for e in engines]),
        slots_per_replica=min((e.max_num_seqs for e in engines), default=None),
        preemptions_per_minute=_per_second(recent, metrics.PREEMPTIONS, scale=60),
        gpu_utilisation_ratio=_mean([g.utilisation_ratio for e in engines for g in e.gpus]),
        kv_hit_ratio=_ratio(recent.grown.count(metrics.KV_HIT_BLOCKS), recent.grown.count(metrics.KV_REUSABLE_BLOCKS)),
        mean_batch_size=mean_of(recent.grown.histogram(metrics.BATCH_SIZE)),
        tokens_per_s=_per_second(recent, metrics.STEP_TOKENS) if engines else None,
    )


def counted_engines(recent: Recent, served: ServedReplicas | None) -> tuple[EngineSnapshot, ...]:
    """The fresh engines. One that has been scaled in looks fresh a while: the latest count, as many as are running."""
    engines = tuple(a.snapshot for a in recent.engines)
    return engines if served is None else engines[: served.running]


def attainment(grown: Totals, priority: PriorityClass) -> float | None:
    """The share of ended requests whose every target held; None without any."""
    label = class_label(priority)
    held, missed = grown.count(metrics.HELD, label), grown.count(metrics.MISSED, label)
    return _ratio(held, held + missed)


def mean_of(histogram: HistogramCounts | None) -> float | None:
    """The mean; None when nothing was observed."""
    return None if histogram is None else histogram.mean


def p99_of(histogram: HistogramCounts | None) -> float | None:
    """The P99; None when nothing was observed."""
    return None if histogram is None else histogram.quantile(P99)


def per_second(recent: Recent, metric: Metric, *labels: str) -> float:
    """A counter's growth a second over the window; 0 while there is no window yet."""
    return _per_second(recent, metric, *labels) or 0.0


def _class_view(recent: Recent, engines: Iterable[EngineSnapshot], priority: PriorityClass) -> ClassView:
    label = class_label(priority)
    loads = [e.classes.get(priority, _NO_LOAD) for e in engines]
    return ClassView(
        ttft_p99_s=p99_of(recent.grown.histogram(metrics.TTFT, label)),
        tbt_p99_s=p99_of(recent.grown.histogram(metrics.TBT, label)),
        arrivals_per_s=per_second(recent, metrics.ARRIVALS, label),
        completions_per_s=per_second(recent, metrics.REQUESTS, label, Outcome.COMPLETED.value),
        starts_per_s=_starts_per_s(recent, label) if loads else None,
        num_running=sum(load.num_running for load in loads),
        num_waiting=sum(load.num_waiting for load in loads) + _num_queued(recent, priority),
        num_paused=sum(load.num_paused for load in loads),
        num_swapped=sum(load.num_swapped for load in loads),
    )


def _replica_counts(served: ServedReplicas | None, fresh: int) -> ReplicaCounts | None:
    if served is None:
        return None
    return ReplicaCounts(served.target, served.running, served.starting, served.draining, fresh)


def _num_in_flight(recent: Recent) -> int:
    return sum(t.num_in_flight for a in recent.ingresses for t in a.snapshot.classes.values())


def _starts_per_s(recent: Recent, label: str) -> float | None:
    """Requests that got their first step, a second; None while there is no window yet."""
    waited = recent.grown.histogram(metrics.QUEUE_WAIT, label)
    return None if recent.span_s is None or waited is None else waited.count / recent.span_s


def _num_queued(recent: Recent, priority: PriorityClass) -> int:
    """Requests that wait at the gate: the engines do not know them, and they are demand all the same."""
    classes = (a.snapshot.classes for a in recent.ingresses)
    return sum(of[priority].num_queued for of in classes if priority in of)


def _is_complete(recent: Recent, served: ServedReplicas | None, num_engines: int) -> bool:
    return (
        served is not None
        and num_engines >= served.running
        and recent.num_silent == 0
        and bool(recent.ingresses)
        and recent.span_s is not None
    )


def _per_second(recent: Recent, metric: Metric, *labels: str, scale: float = 1) -> float | None:
    return None if recent.span_s is None else recent.grown.count(metric, *labels) * scale / recent.span_s


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
