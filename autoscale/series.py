"""Totals as time series: what grows in a snapshot, keyed by its metric and labels, so that sources can be added up.

The same keys serve the window (what was added), the exposition (what is told to Prometheus) and the reports. Owns which
field of a snapshot is which metric; knows neither time nor freshness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from slo import metrics
from slo.histogram import HistogramCounts
from slo.messages import Recovery
from slo.metrics import Metric
from slo.outcome import LineOutcome, Outcome
from slo.priority import PriorityClass
from slo.snapshots import (
    BatchSnapshot,
    ClassLoad,
    ClassTraffic,
    EngineSnapshot,
    IngressSnapshot,
    KVUse,
    PreemptionKind,
    SwapRefusal,
    SwapUse,
)
from slo.status import class_label


class SwapDirection(Enum):
    """Where KV is moved to, as a metric label: out of the device, or in."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True)
class Series:
    """One time series: a metric, and the values of its labels in the metric's order."""

    metric: Metric
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters and histograms of one source, or of several added up. None ever falls while its source lives."""

    counters: Mapping[Series, float] = field(default_factory=dict)
    histograms: Mapping[Series, HistogramCounts] = field(default_factory=dict)

    def __add__(self, other: Totals) -> Totals:
        counters, histograms = dict(self.counters), dict(self.histograms)
        for series, value in other.counters.items():
            counters[series] = counters.get(series, 0) + value
        for series, counts in other.histograms.items():
            histograms[series] = histograms[series] + counts if series in histograms else counts
        return Totals(counters, histograms)

    def grown_since(self, earlier: Totals) -> Totals:
        """What was added since `earlier`, a former state of the same source.

        Raises:
            ValueError: a total has fallen, so it is no former state.
        """
        counters = {s: value - earlier.counters.get(s, 0) for s, value in self.counters.items()}
        missing = (earlier.counters.keys() - self.counters.keys()) | (
            earlier.histograms.keys() - self.histograms.keys()
        )
        fallen = [s for s, value in counters.items() if value < 0] + list(missing)
        if fallen:
            raise ValueError(f"a total has fallen: {fallen[0].metric.name}")
        return Totals(
            counters,
            {
                s: counts - earlier.histograms[s] if s in earlier.histograms else counts
                for s, counts in self.histograms.items()
            },
        )

    def count(self, metric: Metric, *labels: str) -> float:
        """The counter's value; 0 when it has none. With fewer labels than the metric has: the sum over the others."""
        return sum(v for s, v in self.counters.items() if s.metric is metric and s.labels[: len(labels)] == labels)

    def histogram(self, metric: Metric, *labels: str) -> HistogramCounts | None:
        """The histogram's counts; None when it has none."""
        return self.histograms.get(Series(metric, labels))


def totals_of_ingress(snapshot: IngressSnapshot) -> Totals:
    """The totals in the snapshot of an ingress process."""
    counters: dict[Series, float] = {
        Series(metrics.UNCLASSIFIED, (o.value,)): n for o, n in snapshot.num_unclassified.items()
    }
    counters |= {Series(metrics.RECOVERIES, (recovery.value,)): n for recovery, n in snapshot.recoveries.items()}
    histograms: dict[Series, HistogramCounts] = {}
    for priority, traffic in snapshot.classes.items():
        label = class_label(priority)
        counters |= dict(_traffic_counters(label, traffic))
        histograms |= dict(_traffic_histograms(label, traffic))
    return Totals(counters, histograms)


def totals_of_engine(snapshot: EngineSnapshot) -> Totals:
    """The totals in the snapshot of an engine."""
    counters: dict[Series, float] = {
        Series(metrics.STEP_TOKENS): snapshot.num_step_tokens,
        Series(metrics.BUDGET_TOKENS): snapshot.num_budget_tokens,
        Series(metrics.LOST_TOKENS): snapshot.num_lost_tokens,
        Series(metrics.PROMOTIONS): snapshot.num_promotions,
        Series(metrics.KV_REUSABLE_BLOCKS): snapshot.kv.num_reusable_blocks,
        Series(metrics.KV_HIT_BLOCKS): snapshot.kv.num_hit_blocks,
    }
    counters |= dict(_swap_counters(snapshot.swap))
    histograms = {Series(metrics.BATCH_SIZE): snapshot.batch_sizes}
    for priority, load in snapshot.classes.items():
        label = class_label(priority)
        histograms[Series(metrics.QUEUE_WAIT, (label,))] = load.queue_wait
        for kind, n in load.num_preempted.items():
            counters[Series(metrics.PREEMPTIONS, (label, kind.value))] = n
    return Totals(counters, histograms)


def totals_of_batches(snapshot: BatchSnapshot) -> Totals:
    """The totals in the snapshot of the owner of the batches."""
    ended: dict[Series, float] = {
        Series(metrics.BATCH_LINES, (outcome.value,)): n for outcome, n in snapshot.num_ended.items()
    }
    return Totals(ended | {Series(metrics.BATCH_RETRIES): snapshot.num_retries})


def nothing_yet() -> Totals:
    """Every series of an ingress process, of an engine and of the owner of the batches at zero.

    A counter that only appears with its first event would hide that event from Prometheus' `increase`.
    """
    traffic = ClassTraffic(outcomes=dict.fromkeys(Outcome, 0))
    load = ClassLoad(num_preempted=dict.fromkeys(PreemptionKind, 0))
    ingress = IngressSnapshot(
        source_id="",
        age_s=0,
        classes=dict.fromkeys(PriorityClass, traffic),
        num_unclassified=dict.fromkeys(Outcome, 0),
        recoveries=dict.fromkeys(Recovery, 0),
    )
    engine = EngineSnapshot(
        source_id="",
        age_s=0,
        classes=dict.fromkeys(PriorityClass, load),
        max_num_seqs=0,
        kv=KVUse(num_blocks=0, num_used_blocks=0, num_allocated_slots=0, num_filled_slots=0),
        swap=SwapUse(refusals=dict.fromkeys(SwapRefusal, 0)),
    )
    batches = BatchSnapshot(source_id="", age_s=0, num_ended=dict.fromkeys(LineOutcome, 0))
    return totals_of_ingress(ingress) + totals_of_engine(engine) + totals_of_batches(batches)


def _traffic_counters(label: str, traffic: ClassTraffic) -> Iterator[tuple[Series, float]]:
    for outcome, n in traffic.outcomes.items():
        yield Series(metrics.REQUESTS, (label, outcome.value)), n
    yield Series(metrics.ARRIVALS, (label,)), sum(traffic.outcomes.values()) + traffic.num_in_flight
    yield Series(metrics.HELD, (label,)), traffic.num_held
    yield Series(metrics.MISSED, (label,)), traffic.num_missed


def _traffic_histograms(label: str, traffic: ClassTraffic) -> Iterator[tuple[Series, HistogramCounts]]:
    yield Series(metrics.TTFT, (label,)), traffic.ttft
    yield Series(metrics.TBT, (label,)), traffic.tbt
    yield Series(metrics.E2E, (label,)), traffic.e2e


def _swap_counters(swap: SwapUse) -> Iterator[tuple[Series, float]]:
    yield Series(metrics.SWAP_BYTES, (SwapDirection.OUT.value,)), swap.bytes_out
    yield Series(metrics.SWAP_BYTES, (SwapDirection.IN.value,)), swap.bytes_in
    yield Series(metrics.SWAP_SECONDS, (SwapDirection.OUT.value,)), swap.seconds_out
    yield Series(metrics.SWAP_SECONDS, (SwapDirection.IN.value,)), swap.seconds_in
    for reason, n in swap.refusals.items():
        yield Series(metrics.SWAP_REFUSALS, (reason.value,)), n
