"""Mutations tried by hand, each found by a test here: the payload left in vLLM's statistics; a connector's own dropped;
an empty dict left instead of None; a value put that is not plain."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from replicas.snapshot_codec import ask_for_statistics, is_asked_for_statistics, put, take
from slo.histogram import Histogram
from slo.priority import PriorityClass
from slo.settings import SchedulerSettings
from slo.snapshots import ClassLoad, EngineSnapshot, KVUse, PreemptionKind, SwapRefusal, SwapUse


def make_snapshot() -> EngineSnapshot:
    histogram = Histogram()
    histogram.observe(0.25)
    load = ClassLoad(1, 2, 3, 4, histogram.counts(), {PreemptionKind.PAUSED: 5, PreemptionKind.RECLAIMED: 6})
    swap = SwapUse(7, 8, 0.5, 0.25, {SwapRefusal.TOO_SLOW: 9}, 10, 11)
    classes = dict.fromkeys(PriorityClass, load)
    return EngineSnapshot("abcde", 0.0, classes, 8, KVUse(100, 50, 1600, 1500, 30, 20), swap=swap)


@dataclass
class Stats:
    kv_connector_stats: dict[str, Any] | None = None


def test_snapshot_arrives_as_it_was_sent_and_is_taken_out() -> None:
    stats = Stats()
    put(make_snapshot(), stats)
    assert take(stats) == make_snapshot()
    assert (stats.kv_connector_stats, take(stats)) == (None, None)


def test_snapshot_is_sent_as_plain_json_values() -> None:
    stats = Stats()
    put(make_snapshot(), stats)
    assert json.loads(json.dumps(stats.kv_connector_stats)) == _lists(stats.kv_connector_stats)
    stats.kv_connector_stats = json.loads(json.dumps(stats.kv_connector_stats))
    assert take(stats) == make_snapshot()


def test_snapshot_survives_vllms_way_between_its_processes() -> None:
    stats = SchedulerStats()
    put(make_snapshot(), stats)
    received = MsgpackDecoder(SchedulerStats).decode(MsgpackEncoder().encode(stats))
    assert take(received) == make_snapshot()
    assert received.kv_connector_stats is None


def test_connector_statistics_stay_beside_the_snapshot() -> None:
    theirs = {"num_loads": 3}
    stats = Stats(theirs)
    put(make_snapshot(), stats)
    assert theirs == {"num_loads": 3}, "the connector's own dict is not ours to change"
    assert take(stats) == make_snapshot()
    assert stats.kv_connector_stats == {"num_loads": 3}


@pytest.mark.parametrize("theirs", [None, {}, {"num_loads": 3}])
def test_take_gives_none_and_changes_nothing_where_there_is_no_snapshot(theirs: dict[str, Any] | None) -> None:
    stats = Stats(theirs)
    assert take(stats) is None
    assert stats.kv_connector_stats is theirs


def test_statistics_are_sent_where_they_are_asked_for_only() -> None:
    additional = SchedulerSettings().as_additional_config()
    asked = ask_for_statistics(additional)
    assert {k: v for k, v in asked.items() if k in additional} == additional
    assert is_asked_for_statistics(asked)
    assert not any(map(is_asked_for_statistics, (additional, {}, None, "expresslane_statistics")))
    assert asked == ask_for_statistics(additional), "vLLM keeps compiled models by a hash of it"


def _lists(value: Any) -> Any:
    """Tuples as JSON gives them back."""
    if isinstance(value, dict):
        return {k: _lists(v) for k, v in value.items()}
    return [_lists(v) for v in value] if isinstance(value, list | tuple) else value
