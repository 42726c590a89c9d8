"""Mutations tried, each seen by a test here: a counter's fall not looked for; a vanished series not looked for; `count`
without its label filter; zeros left out of `nothing_yet`; in-flight requests left out of arrivals."""

from __future__ import annotations

import pytest

from autoscale.series import Series, SwapDirection, Totals, nothing_yet, totals_of_engine, totals_of_ingress
from slo import metrics
from slo.messages import Recovery
from slo.metrics import MetricKind
from slo.outcome import Outcome
from slo.snapshots import (
    ClassLoad,
    ClassTraffic,
    EngineSnapshot,
    IngressSnapshot,
    KVUse,
    PreemptionKind,
    SwapRefusal,
    SwapUse,
)
from tests.autoscale.fleet import P0, P1, P2, ingress, latencies

MADE_ELSEWHERE = {metrics.SCALING_DECISIONS}
"""The one counter that no source counts: the controller does."""


def test_totals_of_ingress_are_what_its_snapshot_counts() -> None:
    traffic = ClassTraffic(
        ttft=latencies([0.1]),
        tbt=latencies([0.02, 0.03]),
        e2e=latencies([1]),
        outcomes={Outcome.COMPLETED: 4, Outcome.SHED: 1},
        num_held=3,
        num_missed=2,
        num_in_flight=6,
    )
    totals = totals_of_ingress(ingress(classes={P0: traffic}, unclassified={Outcome.REJECTED: 7}))
    assert totals.count(metrics.REQUESTS, "P0", "completed") == 4
    assert totals.count(metrics.REQUESTS, "P0") == 5
    assert totals.count(metrics.REQUESTS, "P1") == 0
    assert totals.count(metrics.ARRIVALS, "P0") == 11
    assert totals.count(metrics.HELD, "P0") == 3
    assert totals.count(metrics.MISSED, "P0") == 2
    assert totals.count(metrics.UNCLASSIFIED, "rejected") == 7
    assert totals.histogram(metrics.TTFT, "P0") == traffic.ttft
    assert totals.histogram(metrics.TBT, "P0") == traffic.tbt
    assert totals.histogram(metrics.E2E, "P0") == traffic.e2e
    assert totals.histogram(metrics.E2E, "P1") is None


def test_totals_of_engine_are_what_its_snapshot_counts() -> None:
    load = ClassLoad(
        queue_wait=latencies([0.5]), num_preempted={PreemptionKind.PAUSED: 2, PreemptionKind.RECOMPUTED: 1}
    )
    snapshot = EngineSnapshot(
        source_id="e",
        age_s=0,
        classes={P1: load, P2: load},
        max_num_seqs=4,
        kv=KVUse(10, 5, 80, 70, num_reusable_blocks=9, num_hit_blocks=8),
        num_step_tokens=100,
        num_budget_tokens=200,
        num_lost_tokens=3,
        num_promotions=4,
        swap=SwapUse(5, 6, 0.5, 0.6, {SwapRefusal.HOST_FULL: 7}),
    )
    totals = totals_of_engine(snapshot)
    assert totals.histogram(metrics.QUEUE_WAIT, "P1") == load.queue_wait
    assert totals.histogram(metrics.BATCH_SIZE) == snapshot.batch_sizes
    assert totals.count(metrics.PREEMPTIONS) == 6
    assert totals.count(metrics.PREEMPTIONS, "P2", "paused") == 2
    expected = {
        metrics.STEP_TOKENS: 100,
        metrics.BUDGET_TOKENS: 200,
        metrics.LOST_TOKENS: 3,
        metrics.PROMOTIONS: 4,
        metrics.KV_REUSABLE_BLOCKS: 9,
        metrics.KV_HIT_BLOCKS: 8,
    }
    assert {m: totals.count(m) for m in expected} == expected
    assert totals.count(metrics.SWAP_BYTES, SwapDirection.OUT.value) == 5
    assert totals.count(metrics.SWAP_BYTES, SwapDirection.IN.value) == 6
    assert totals.count(metrics.SWAP_SECONDS, SwapDirection.OUT.value) == 0.5
    assert totals.count(metrics.SWAP_SECONDS, SwapDirection.IN.value) == 0.6
    assert totals.count(metrics.SWAP_REFUSALS, "host_full") == 7


def test_nothing_yet_has_every_counter_and_histogram_at_zero() -> None:
    nothing = nothing_yet()
    metrics_in_it = {s.metric for s in (*nothing.counters, *nothing.histograms)}
    assert metrics_in_it == {m for m in metrics.ALL if m.kind is not MetricKind.GAUGE} - MADE_ELSEWHERE
    assert not any(nothing.counters.values())
    assert not any(counts.count for counts in nothing.histograms.values())
    assert Series(metrics.PREEMPTIONS, ("P0", "reclaimed")) in nothing.counters
    assert Series(metrics.REQUESTS, ("P2", "expired")) in nothing.counters


def test_labels_are_as_many_as_the_metric_has() -> None:
    nothing = nothing_yet()
    for series in (*nothing.counters, *nothing.histograms):
        assert len(series.labels) == len(series.metric.labels)


def test_sum_of_totals_has_the_series_of_both() -> None:
    a, b = Series(metrics.STEP_TOKENS), Series(metrics.LOST_TOKENS)
    h = Series(metrics.TBT, ("P0",))
    total = Totals({a: 1}, {h: latencies([0.1])}) + Totals({a: 2, b: 3}, {h: latencies([0.2, 0.3])})
    assert total.counters == {a: 3, b: 3}
    assert total.histograms[h].count == 3


def test_growth_is_what_was_added() -> None:
    a, b, h = Series(metrics.STEP_TOKENS), Series(metrics.LOST_TOKENS), Series(metrics.TBT, ("P0",))
    earlier = Totals({a: 1}, {})
    grown = Totals({a: 4, b: 2}, {h: latencies([0.1])}).grown_since(earlier)
    assert grown == Totals({a: 3, b: 2}, {h: latencies([0.1])})


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (Totals({Series(metrics.STEP_TOKENS): 2}), Totals({Series(metrics.STEP_TOKENS): 1})),
        (Totals({Series(metrics.STEP_TOKENS): 0}), Totals()),
        (Totals({}, {Series(metrics.TBT, ("P0",)): latencies([])}), Totals()),
        (
            Totals({}, {Series(metrics.TBT, ("P0",)): latencies([0.1])}),
            Totals({}, {Series(metrics.TBT, ("P0",)): latencies([0.2])}),
        ),
    ],
    ids=["counter falls", "counter vanishes", "histogram vanishes", "bucket falls"],
)
def test_growth_is_refused_when_a_total_has_fallen(earlier: Totals, later: Totals) -> None:
    with pytest.raises(ValueError, match=r"fallen|earlier state"):
        later.grown_since(earlier)


def test_totals_of_ingress_count_what_became_of_lost_replicas() -> None:
    totals = totals_of_ingress(IngressSnapshot("i", 0, {}, recoveries={Recovery.AGAIN: 3, Recovery.RETRIED: 2}))
    assert totals.count(metrics.RECOVERIES, "again") == 3
    assert totals.count(metrics.RECOVERIES) == 5
    assert Series(metrics.RECOVERIES, ("not_possible",)) in nothing_yet().counters
