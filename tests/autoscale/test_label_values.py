"""Mutations tried by hand, each found by a test here: no replica in the scrape; a GPU left out; the values of the first
label alone."""

from __future__ import annotations

import pytest

from autoscale.decision import ScalingReason
from autoscale.exposition import ReplicaState
from autoscale.label_values import label_values
from autoscale.rules import SCALING_FAILED, TTFT_HIGH
from autoscale.series import SwapDirection
from slo import metrics
from slo.messages import Recovery
from slo.metrics import ALL, EngineState, Metric
from slo.outcome import LineOutcome, Outcome
from slo.settings import Settings, parse_settings
from slo.snapshots import PreemptionKind, SwapRefusal

CLASSES = ("P0", "P1", "P2")
VALUES = label_values(Settings())


def test_every_metric_has_its_labels_values() -> None:
    assert set(VALUES) == set(ALL)
    for metric, values in VALUES.items():
        assert len(values) == len(metric.labels)
        assert all(values)


@pytest.mark.parametrize(
    ("metric", "enums"),
    [
        (metrics.REQUESTS, [Outcome]),
        (metrics.UNCLASSIFIED, [Outcome]),
        (metrics.RECOVERIES, [Recovery]),
        (metrics.ENGINE_REQUESTS, [EngineState]),
        (metrics.PREEMPTIONS, [PreemptionKind]),
        (metrics.SWAP_BYTES, [SwapDirection]),
        (metrics.SWAP_REFUSALS, [SwapRefusal]),
        (metrics.BATCH_LINES, [LineOutcome]),
        (metrics.REPLICAS, [ReplicaState]),
        (metrics.SCALING_DECISIONS, [ScalingReason]),
        (metrics.TTFT, []),
        (metrics.IN_FLIGHT, []),
        (metrics.BATCH_SIZE, []),
    ],
    ids=lambda of: of.name if isinstance(of, Metric) else "",
)
def test_values_are_all_of_the_labels_enum_in_its_order(metric: Metric, enums: list[type]) -> None:
    of_class = [CLASSES] if metrics.LABEL_CLASS in metric.labels else []
    assert list(VALUES[metric]) == [*of_class, *(tuple(member.value for member in enum) for enum in enums)]


def test_alerts_are_those_of_the_settings_and_the_controllers_own() -> None:
    without = label_values(parse_settings({"alerts": {"ttft_high": {"enabled": False}}}))
    (all_of_them,), (others,) = VALUES[metrics.ALERT_FIRING], without[metrics.ALERT_FIRING]
    assert all_of_them[-1] == others[-1] == SCALING_FAILED
    assert set(all_of_them) - set(others) == {TTFT_HIGH}
