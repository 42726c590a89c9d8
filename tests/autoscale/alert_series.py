"""A fleet of one ingress and one engine, period by period: the same numbers for the controller and for Prometheus.

`play` puts them through the controller's own window, view and exposition; what it would have answered to a scrape in
each period is what promtool is given as its series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from autoscale.exposition import Exposed, fleet_gauges, render
from autoscale.series import Series, Totals
from autoscale.summary import ServedReplicas, fleet_view
from autoscale.view import FleetView
from autoscale.window import Answer, Collection, Recent, Window
from slo import metrics
from slo.histogram import BATCH_BOUNDS, LATENCY_BOUNDS_S, Histogram
from slo.priority import PriorityClass
from slo.settings import Settings
from slo.snapshots import (
    ClassLoad,
    ClassTraffic,
    EngineSnapshot,
    GpuUse,
    IngressSnapshot,
    KVUse,
    PreemptionKind,
)

NUM_SLOTS = 64
ONE_REPLICA = ServedReplicas(target=1, running=1, starting=0, draining=0)

RULE_METRICS = (
    metrics.TTFT,
    metrics.TBT,
    metrics.PREEMPTIONS,
    metrics.ENGINE_REQUESTS,
    metrics.BATCH_SIZE,
    metrics.KV_REUSABLE_BLOCKS,
    metrics.KV_HIT_BLOCKS,
    metrics.GPU_UTILISATION,
)
"""What the rules are made of; the other series would only make promtool slow."""

Value = TypeVar("Value")
Latencies = Mapping[PriorityClass, Mapping[float, int]]
"""How often each latency, seconds, was seen in a period."""


@dataclass(frozen=True, slots=True)
class Period:
    """What happens in one period, and how the fleet stands at its end. As it stands: no alert's condition holds."""

    ttft_s: Latencies = field(default_factory=lambda: {p: {0.03: 50} for p in PriorityClass})
    tbt_s: Latencies = field(default_factory=lambda: {p: {0.015: 500} for p in PriorityClass})
    num_preempted: int = 0
    num_reusable_blocks: int = 1000
    num_hit_blocks: int = 1000
    batch_size: int | None = 48
    """Of each of 100 steps; None: no step."""
    num_waiting: int = 0
    gpu_ratio: float | None = 0.9
    """None: no GPU, or none that answers."""


class SeriesFleet:
    """Keeps the totals of its two sources. Both have served before: their first answers are not empty."""

    def __init__(self) -> None:
        self._ttft = {p: Histogram() for p in PriorityClass}
        self._tbt = {p: Histogram() for p in PriorityClass}
        self._batch_sizes = Histogram(BATCH_BOUNDS)
        self._num_preempted, self._num_reusable, self._num_hit = 100, 10_000, 9_000
        for histogram in (*self._ttft.values(), *self._tbt.values()):
            for bound in LATENCY_BOUNDS_S:
                histogram.observe(bound)

    def live(self, period: Period) -> tuple[IngressSnapshot, EngineSnapshot]:
        """What the two tell at the end of `period`."""
        for histograms, latencies in ((self._ttft, period.ttft_s), (self._tbt, period.tbt_s)):
            for priority, seen in latencies.items():
                for latency_s, times in seen.items():
                    for _ in range(times):
                        histograms[priority].observe(latency_s)
        for _ in range(100 if period.batch_size is not None else 0):
            self._batch_sizes.observe(period.batch_size or 0)
        self._num_preempted += period.num_preempted
        self._num_reusable += period.num_reusable_blocks
        self._num_hit += period.num_hit_blocks
        return self._ingress(), self._engine(period)

    def _ingress(self) -> IngressSnapshot:
        traffic = {p: ClassTraffic(ttft=self._ttft[p].counts(), tbt=self._tbt[p].counts()) for p in PriorityClass}
        return IngressSnapshot("ingress", 0.0, traffic)

    def _engine(self, period: Period) -> EngineSnapshot:
        gpus = () if period.gpu_ratio is None else (GpuUse(0, period.gpu_ratio, 0, 1),)
        urgent, rest = period.num_waiting // 4, period.num_waiting - period.num_waiting // 4
        return EngineSnapshot(
            source_id="engine",
            age_s=0.0,
            classes={
                PriorityClass.P0: ClassLoad(num_running=4, num_waiting=urgent),
                PriorityClass.P1: ClassLoad(
                    num_running=8, num_preempted={PreemptionKind.PAUSED: self._num_preempted // 3}
                ),
                PriorityClass.P2: ClassLoad(
                    num_waiting=rest,
                    num_preempted={PreemptionKind.SWAPPED: self._num_preempted - self._num_preempted // 3},
                ),
            },
            max_num_seqs=NUM_SLOTS,
            kv=KVUse(1000, 500, 8000, 7900, self._num_reusable, self._num_hit),
            batch_sizes=self._batch_sizes.counts(),
            gpus=gpus,
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """The end of a period, as the controller's rules see it and as a scrape tells it: values by series, in PromQL."""

    view: FleetView
    scrape: Mapping[str, float]


def play(periods: Sequence[Period], settings: Settings) -> list[Moment]:
    """The fleet at the end of each period; the first period ends at 0 s."""
    autoscale = settings.autoscale
    window = Window(autoscale.window_s, autoscale.period_s, autoscale.stale_after_s)
    fleet, moments = SeriesFleet(), []
    for index, period in enumerate(periods):
        now_s = index * autoscale.period_s
        ingress, engine = fleet.live(period)
        recent = window.add(Collection((Answer(ingress, now_s),), (Answer(engine, now_s),)), now_s)
        window.check_invariants()
        view = fleet_view(recent, ONE_REPLICA, autoscale.window_s)
        moments.append(Moment(view, scraped(recent, view)))
    return moments


def scraped(recent: Recent, view: FleetView) -> dict[str, float]:
    """What Prometheus gets of the metrics that the rules use. A line of the text is a series, as PromQL writes it."""
    ingresses = [a.snapshot for a in recent.ingresses]
    engines = [a.snapshot for a in recent.engines]
    gauges: dict[Series, float] = dict(fleet_gauges(view, ingresses, engines))
    totals = Totals(_of_rules(recent.totals.counters), _of_rules(recent.totals.histograms))
    lines = render(Exposed(totals, _of_rules(gauges))).splitlines()
    return {series: float(value) for series, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}


def _of_rules(values: Mapping[Series, Value]) -> dict[Series, Value]:
    return {series: value for series, value in values.items() if series.metric in RULE_METRICS}


def input_series(moments: Sequence[Moment], *, between: bool) -> list[dict[str, Any]]:
    """promtool's `input_series`, one sample a period, or with `between` one in the middle of each.

    A series that is gone is marked so, as Prometheus does after a scrape without it.
    """
    names = sorted({name for moment in moments for name in moment.scrape})
    return [{"series": name, "values": " ".join(_values(name, moments, between))} for name in names]


def _values(name: str, moments: Sequence[Moment], between: bool) -> list[str]:
    values = []
    for index, moment in enumerate(moments):
        if name in moment.scrape:
            value = repr(moment.scrape[name])
        elif index and name in moments[index - 1].scrape:
            value = "stale"
        else:
            value = "_"
        values += ["_", value] if between else [value]
    return values
