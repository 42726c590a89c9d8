"""The whole fleet in Prometheus' text format: one scrape, of any ingress process, tells all of it.

Counters and histograms are the fleet's totals; gauges are made here of the fresh sources. A value that is not known is
left out, never told as zero. Names, kinds and labels come from slo/metrics.py alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from autoscale.series import Series, Totals
from autoscale.view import FleetView
from slo import metrics
from slo.histogram import HistogramCounts
from slo.metrics import EngineState, Metric, MetricKind
from slo.priority import PriorityClass
from slo.settings.targets import ClassTargets
from slo.snapshots import BatchSnapshot, EngineSnapshot, IngressSnapshot
from slo.status import class_label

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Value = TypeVar("Value", float, HistogramCounts)
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class ReplicaState(Enum):
    """How a replica counts, as a metric label."""

    TARGET = "target"
    RUNNING = "running"
    STARTING = "starting"
    DRAINING = "draining"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class Exposed:
    """What one scrape tells."""

    totals: Totals
    gauges: Mapping[Series, float]


def render(exposed: Exposed) -> str:
    """The text, in format 0.0.4 (`CONTENT_TYPE`)."""
    return _text(_Fleet({(): exposed}))


def render_models(exposed: Mapping[str, Exposed]) -> str:
    """The same of several models' fleets: each series has its model's name as one label more, the first."""
    return _text(_Fleet({(model,): of_model for model, of_model in exposed.items()}, (metrics.LABEL_MODEL,)))


def _text(fleet: Collector) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(fleet)
    return generate_latest(registry).decode()


def fleet_gauges(
    view: FleetView,
    ingresses: Iterable[IngressSnapshot],
    engines: Sequence[EngineSnapshot],
    batches: Sequence[BatchSnapshot] = (),
) -> Iterator[tuple[Series, float]]:
    """The states of the fleet; `ingresses`, `engines` and `batches` are the fresh ones, the latest first."""
    yield from _in_flight(list(ingresses))
    if engines:
        yield from _engine_gauges(view, engines)
        yield from _memory_gauges(engines)
    if gpus := [g for e in engines for g in e.gpus]:
        yield Series(metrics.GPU_UTILISATION), sum(g.utilisation_ratio for g in gpus) / len(gpus)
        yield Series(metrics.GPU_MEMORY_BYTES), sum(g.memory_bytes for g in gpus)
        yield Series(metrics.GPU_MEMORY_BYTES_USED), sum(g.memory_used_bytes for g in gpus)
    for owner in batches[:1]:  # one that has just been replaced may look fresh beside its successor
        yield Series(metrics.BATCH_LINES_QUEUED), owner.num_pending
        yield Series(metrics.BATCH_LINES_IN_FLIGHT), owner.num_in_flight
        yield Series(metrics.BATCHES_OPEN), owner.num_open
    if (counts := view.replicas) is not None:
        for state in ReplicaState:
            yield Series(metrics.REPLICAS, (state.value,)), getattr(counts, state.value)


def target_gauges(targets: ClassTargets) -> Iterator[tuple[Series, float]]:
    """The classes' targets, seconds; none for a class without one."""
    for priority in PriorityClass:
        of_class, label = targets.of(priority), class_label(priority)
        if of_class.ttft_p99_ms is not None:
            yield Series(metrics.TTFT_TARGET, (label,)), of_class.ttft_p99_ms / 1e3
        if of_class.tbt_p99_ms is not None:
            yield Series(metrics.TBT_TARGET, (label,)), of_class.tbt_p99_ms / 1e3


def _in_flight(ingresses: Sequence[IngressSnapshot]) -> Iterator[tuple[Series, float]]:
    if not ingresses:
        return
    for priority in PriorityClass:
        traffic = [i.classes[priority] for i in ingresses if priority in i.classes]
        yield Series(metrics.IN_FLIGHT, (class_label(priority),)), sum(t.num_in_flight for t in traffic)


def _engine_gauges(view: FleetView, engines: Sequence[EngineSnapshot]) -> Iterator[tuple[Series, float]]:
    for priority, of_class in view.classes.items():
        for state in EngineState:
            labels = (class_label(priority), state.value)
            yield Series(metrics.ENGINE_REQUESTS, labels), getattr(of_class, f"num_{state.value}")
    yield Series(metrics.SATURATION), sum(e.saturation_ratio for e in engines) / len(engines)


def _memory_gauges(engines: Sequence[EngineSnapshot]) -> Iterator[tuple[Series, float]]:
    yield Series(metrics.KV_BLOCKS), sum(e.kv.num_blocks for e in engines)
    yield Series(metrics.KV_BLOCKS_USED), sum(e.kv.num_used_blocks for e in engines)
    if slots := sum(e.kv.num_allocated_slots for e in engines):
        yield Series(metrics.KV_FRAGMENTATION), 1 - sum(e.kv.num_filled_slots for e in engines) / slots
    yield Series(metrics.SWAP_HOST_BYTES), sum(e.swap.host_bytes for e in engines)
    yield Series(metrics.SWAP_HOST_BYTES_USED), sum(e.swap.host_used_bytes for e in engines)


class _Fleet(Collector):
    """What prometheus_client asks at a scrape.

    Args:
        exposed: by what goes before each series' own labels, of the names in `labels`.
    """

    def __init__(self, exposed: Mapping[tuple[str, ...], Exposed], labels: tuple[str, ...] = ()) -> None:
        self._exposed = exposed
        self._labels = labels

    def collect(self) -> Iterator[Family]:
        counters = _ByMetric({first: e.totals.counters for first, e in self._exposed.items()})
        gauges = _ByMetric({first: e.gauges for first, e in self._exposed.items()})
        histograms = _ByMetric({first: e.totals.histograms for first, e in self._exposed.items()})
        for metric in metrics.ALL:
            labels = (*self._labels, *metric.labels)
            match metric.kind:
                case MetricKind.COUNTER:
                    yield from _numbers(CounterMetricFamily, metric, labels, counters.of(metric))
                case MetricKind.GAUGE:
                    yield from _numbers(GaugeMetricFamily, metric, labels, gauges.of(metric))
                case MetricKind.HISTOGRAM:
                    yield from _histogram(metric, labels, histograms.of(metric))


class _ByMetric(Generic[Value]):
    def __init__(self, values: Mapping[tuple[str, ...], Mapping[Series, Value]]) -> None:
        self._values: dict[str, dict[tuple[str, ...], Value]] = defaultdict(dict)
        for before, of_series in values.items():
            for series, value in of_series.items():
                self._values[series.metric.name][before + series.labels] = value

    def of(self, metric: Metric) -> Mapping[tuple[str, ...], Value]:
        return self._values.get(metric.name, {})


def _numbers(
    family_of: type[CounterMetricFamily] | type[GaugeMetricFamily],
    metric: Metric,
    label_names: tuple[str, ...],
    values: Mapping[tuple[str, ...], float],
) -> Iterator[Family]:
    family = family_of(metric.name, metric.help, labels=label_names)
    for labels, value in values.items():
        family.add_metric(labels, value)
    if values:
        yield family


def _histogram(
    metric: Metric, label_names: tuple[str, ...], values: Mapping[tuple[str, ...], HistogramCounts]
) -> Iterator[Family]:
    family = HistogramMetricFamily(metric.name, metric.help, labels=label_names)
    for labels, counts in values.items():
        family.add_metric(labels, list(_buckets(counts)), counts.sum)
    if values:
        yield family


def _buckets(counts: HistogramCounts) -> Iterator[tuple[str, float]]:
    cumulative = 0
    for bound, count in zip((*map(repr, counts.bounds), "+Inf"), counts.counts, strict=True):
        cumulative += count
        yield bound, cumulative
