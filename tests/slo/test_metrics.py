"""Mutations tried by hand, each found by a test here: a counter without `_total`; a name used twice; a label that is no
constant of the file; a metric that is left out of ALL."""

from __future__ import annotations

import re

import pytest

from slo import metrics
from slo.metrics import ALL, Metric, MetricKind

LABELS = {value for key, value in vars(metrics).items() if key.startswith("LABEL_")}


def test_all_has_every_metric_of_the_file_once() -> None:
    defined = [value for value in vars(metrics).values() if isinstance(value, Metric)]
    assert list(ALL) == defined
    assert len({metric.name for metric in ALL}) == len(ALL) > 30


def test_series_of_all_metrics_are_distinct() -> None:
    series = [name for metric in ALL for name in metric.series]
    assert len(set(series)) == len(series)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_metric_is_named_as_prometheus_wants_it(metric: Metric) -> None:
    assert re.fullmatch(r"expresslane_[a-z]+[a-z0-9_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert not re.search(r"_(ms|milliseconds|percent|kib|mib|gib)(_|$)", metric.name), "not a base unit"
    assert metric.help.endswith(".")


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_metric_has_known_labels_only(metric: Metric) -> None:
    assert set(metric.labels) <= LABELS
    assert len(set(metric.labels)) == len(metric.labels)


@pytest.mark.parametrize(
    ("kind", "series"),
    [
        (MetricKind.COUNTER, ("x",)),
        (MetricKind.GAUGE, ("x",)),
        (MetricKind.HISTOGRAM, ("x_bucket", "x_sum", "x_count")),
    ],
)
def test_series_are_those_that_prometheus_makes_of_the_kind(kind: MetricKind, series: tuple[str, ...]) -> None:
    assert Metric("x", kind, "help.").series == series
