"""Mutations tried by hand, each found by a test here: a counter without `_total`; a name used twice; a label that is no
constant of the file; a metric that is left out of ALL; one in the group above its
own; a unit that is looked for in the last word alone."""

from __future__ import annotations

import re

import pytest

from slo import metrics
from slo.metrics import ALL, GROUPS, UNITS, Group, Metric, MetricKind

LABELS = {value for key, value in vars(metrics).items() if key.startswith("LABEL_")}


def test_all_has_every_metric_of_the_file_once() -> None:
    defined = [value for value in vars(metrics).values() if isinstance(value, Metric)]
    assert list(ALL) == defined
    assert len({metric.name for metric in ALL}) == len(ALL) > 30


def test_every_group_of_the_file_has_metrics_and_a_title_of_its_own() -> None:
    assert list(GROUPS) == [value for value in vars(metrics).values() if isinstance(value, Group)]
    assert all(GROUPS.values())
    assert len({group.title for group in GROUPS}) == len(GROUPS)
    assert [metric for members in GROUPS.values() for metric in members] == list(ALL)


def test_group_has_the_metrics_below_it() -> None:
    assert GROUPS[metrics.OF_GPUS] == (
        metrics.GPU_UTILISATION,
        metrics.GPU_MEMORY_BYTES,
        metrics.GPU_MEMORY_BYTES_USED,
    )


@pytest.mark.parametrize(
    ("name", "unit"),
    [("x_seconds", "seconds"), ("x_bytes_used", "bytes"), ("x_tokens_total", "tokens"), ("x_total", None)],
)
def test_unit_is_a_word_of_the_name(name: str, unit: str | None) -> None:
    assert Metric(name, MetricKind.GAUGE, "help.").unit == unit


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_metric_has_one_unit_at_most(metric: Metric) -> None:
    assert len(set(UNITS) & set(metric.name.split("_"))) == (metric.unit is not None)


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
