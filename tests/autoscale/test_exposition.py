"""Read back by prometheus_client's own parser.

Mutations tried, each seen by a test here: buckets not cumulative; +Inf left out; a metric left out; a gauge told as
zero when nobody is fresh; label values in another order; fragmentation turned around."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from app.operator import METRICS_CONTENT_TYPE
from autoscale.exposition import CONTENT_TYPE, Exposed, fleet_gauges, render, target_gauges
from autoscale.policy import ScalingReason
from autoscale.report import Look, exposed
from autoscale.rules import AlertBook, alert_rules
from autoscale.series import Series, Totals, nothing_yet
from autoscale.summary import ServedReplicas, fleet_view
from autoscale.view import FleetView
from autoscale.window import Answer, Window
from slo import metrics
from slo.metrics import Metric, MetricKind
from slo.outcome import LineOutcome
from slo.settings import Settings
from slo.settings.targets import ClassTargets, LatencyTargets
from slo.snapshots import BatchSnapshot, ClassLoad, ClassTraffic, EngineSnapshot, GpuUse, KVUse, SwapUse
from tests.autoscale.fleet import P0, P1, collection, engine, ingress, latencies

SETTINGS = Settings()
BATCHES = BatchSnapshot("owner", 0, {LineOutcome.FAILED: 2}, num_retries=3, num_pending=5, num_in_flight=4, num_open=1)


def full_look() -> Look:
    """Everything that can be known is known."""
    kv = KVUse(100, 40, 400, 300, 10, 9)
    a = engine("a", {P0: ClassLoad(1, 2, 3, 4)}, saturation=0.25, kv=kv, gpus=(GpuUse(0, 0.5, 10, 20),))
    b = EngineSnapshot("b", 0, {P1: ClassLoad(5, 6, 7, 8)}, 8, kv, saturation_ratio=0.75, swap=SwapUse(1, 2, 3, 4))
    window = Window(30, 10, 25)
    window.add(collection(0), 0)
    traffic = ClassTraffic(tbt=latencies([0.0105, 0.0105, 0.3]), num_in_flight=3)
    told = replace(collection(10, [ingress(classes={P0: traffic})], [a, b]), batches=(Answer(BATCHES, 10),))
    recent = window.add(told, 10)
    served = ServedReplicas(target=3, running=2, starting=1, draining=4)
    return Look(
        recent,
        served,
        fleet_view(recent, served, 30),
        AlertBook(),
        (),
        {ScalingReason.TBT_BREACH: 2},
        None,
    )


def samples_of(text: str) -> list[Sample]:
    return [s for family in text_string_to_metric_families(text) for s in family.samples]


def value(text: str, name: str, **labels: str) -> float:
    (found,) = [s.value for s in samples_of(text) if s.name == name and s.labels == labels]
    return float(found)


@pytest.fixture(scope="module")
def text() -> str:
    return render(exposed(full_look(), SETTINGS, alert_rules(SETTINGS)))


@pytest.mark.parametrize("metric", metrics.ALL, ids=lambda m: m.name)
def test_every_metric_is_told_under_its_name_kind_help_and_labels(text: str, metric: Metric) -> None:
    families = {f.name: f for f in text_string_to_metric_families(text)}
    family = families[metric.name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else metric.name]
    assert family.type == metric.kind.value
    assert family.documentation == metric.help
    assert {s.name for s in family.samples} == set(metric.series)
    for sample in family.samples:
        assert set(sample.labels) - {"le"} == set(metric.labels)


def test_nothing_is_told_that_is_no_metric_of_ours(text: str) -> None:
    assert {s.name for s in samples_of(text)} == {name for metric in metrics.ALL for name in metric.series}


def test_no_series_is_told_twice(text: str) -> None:
    told = [(s.name, tuple(sorted(s.labels.items()))) for s in samples_of(text)]
    assert len(told) == len(set(told))


def test_buckets_are_cumulative_and_end_with_the_count(text: str) -> None:
    buckets = [
        (float(s.labels["le"]), s.value)
        for s in samples_of(text)
        if s.name == f"{metrics.TBT.name}_bucket" and s.labels[metrics.LABEL_CLASS] == "P0"
    ]
    assert [le for le, _ in buckets] == sorted(le for le, _ in buckets)
    below = dict(buckets)
    assert (below[0.01], below[0.011], below[0.2], below[0.3], below[math.inf]) == (0, 2, 2, 3, 3)
    assert value(text, f"{metrics.TBT.name}_count", priority_class="P0") == 3
    assert value(text, f"{metrics.TBT.name}_sum", priority_class="P0") == pytest.approx(0.321)


def test_states_are_of_the_whole_fleet(text: str) -> None:
    state = metrics.ENGINE_REQUESTS.name
    assert value(text, state, priority_class="P0", state="running") == 1
    assert value(text, state, priority_class="P0", state="swapped") == 4
    assert value(text, state, priority_class="P1", state="waiting") == 6
    assert value(text, metrics.IN_FLIGHT.name, priority_class="P0") == 3
    assert value(text, metrics.SATURATION.name) == 0.5
    assert value(text, metrics.BATCH_LINES.name, outcome="failed") == 2
    assert value(text, metrics.BATCH_LINES.name, outcome="completed") == 0
    assert value(text, metrics.BATCH_RETRIES.name) == 3
    assert value(text, metrics.BATCH_LINES_QUEUED.name) == 5
    assert value(text, metrics.BATCH_LINES_IN_FLIGHT.name) == 4
    assert value(text, metrics.BATCHES_OPEN.name) == 1
    assert value(text, metrics.KV_BLOCKS.name) == 200
    assert value(text, metrics.KV_BLOCKS_USED.name) == 80
    assert value(text, metrics.KV_FRAGMENTATION.name) == 0.25
    assert value(text, metrics.GPU_UTILISATION.name) == 0.5
    replicas = {s: value(text, metrics.REPLICAS.name, state=s) for s in ("target", "running", "starting", "draining")}
    assert replicas == {"target": 3, "running": 2, "starting": 1, "draining": 4}
    assert value(text, metrics.REPLICAS.name, state="fresh") == 2


def test_decisions_are_counted_by_reason(text: str) -> None:
    assert value(text, metrics.SCALING_DECISIONS.name, reason="tbt_breach") == 2
    assert value(text, metrics.SCALING_DECISIONS.name, reason="spare") == 0


def test_what_is_not_known_is_left_out_never_zero() -> None:
    view = FleetView(now_s=0, window_s=30, classes={}, replicas=None, is_complete=False)
    assert dict(fleet_gauges(view, [], [])) == {}
    text = render(Exposed(nothing_yet(), {}))
    names = {s.name for s in samples_of(text)}
    assert not names & {m.name for m in metrics.ALL if m.kind is MetricKind.GAUGE}


def test_targets_are_in_seconds_and_left_out_where_there_is_none() -> None:
    targets = ClassTargets(p0=LatencyTargets(ttft_p99_ms=80, tbt_p99_ms=20))
    gauges = dict(target_gauges(targets))
    assert gauges[Series(metrics.TTFT_TARGET, ("P0",))] == 0.08
    assert gauges[Series(metrics.TBT_TARGET, ("P0",))] == 0.02
    assert Series(metrics.TTFT_TARGET, ("P2",)) not in gauges


def test_fragmentation_is_left_out_when_nothing_is_allocated() -> None:
    idle = engine(kv=KVUse(num_blocks=10, num_used_blocks=0, num_allocated_slots=0, num_filled_slots=0))
    view = FleetView(now_s=0, window_s=30, classes={}, replicas=None, is_complete=False)
    gauges = dict(fleet_gauges(view, [], [idle]))
    assert Series(metrics.KV_FRAGMENTATION) not in gauges
    assert gauges[Series(metrics.KV_BLOCKS)] == 10


def test_nothing_at_all_is_an_empty_text() -> None:
    assert render(Exposed(Totals(), {})) == ""


def test_content_type_is_the_one_that_the_ingress_sends() -> None:
    assert METRICS_CONTENT_TYPE == CONTENT_TYPE
