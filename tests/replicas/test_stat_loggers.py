"""What vLLM calls, called as vLLM calls it: by its own `StatLoggerManager`, with all the loggers of a replica.

Mutations tried by hand, each found by a test here: ours called after Ray's; a logger that lacks a method vLLM calls; an
engine's first words not counted as a word.
"""

from __future__ import annotations

import inspect
import logging

import pytest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import LoggingStatLogger, PrometheusStatLogger, StatLoggerBase, StatLoggerManager
from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from replicas.snapshot_codec import put
from replicas.stat_loggers import SnapshotLogger, make_stat_loggers
from replicas.statistics import EngineStatistics
from slo.snapshots import EngineSnapshot, KVUse
from tests.replicas.scheduler.harness.build import EngineShape, make_config

SNAPSHOT = EngineSnapshot("short", 0.0, {}, 8, KVUse(999, 3, 48, 40), num_step_tokens=7)


def make_manager(statistics: EngineStatistics, num_engines: int = 1) -> StatLoggerManager:
    config = make_config(EngineShape(num_blocks=1000, max_num_seqs=8))
    return StatLoggerManager(config, list(range(num_engines)), make_stat_loggers(statistics))


def stats_with(snapshot: EngineSnapshot) -> SchedulerStats:
    stats = SchedulerStats()
    put(snapshot, stats)
    return stats


def test_manager_gives_the_statistics_the_size_of_the_engine() -> None:
    statistics = EngineStatistics()
    make_manager(statistics).log_engine_initialized()
    snapshot = statistics.snapshot(())
    assert (snapshot.max_num_seqs, snapshot.kv.num_blocks) == (8, 999)


def test_manager_hands_a_snapshot_on_and_no_other_logger_sees_it() -> None:
    """vLLM's logger to the console, which is on by default, would take it for a KV connector's and fail."""
    statistics = EngineStatistics()
    manager, stats = make_manager(statistics), stats_with(SNAPSHOT)
    manager.record(stats, IterationStats(), None, 0)
    assert statistics.snapshot(()).num_step_tokens == 7
    assert stats.kv_connector_stats is None


def test_manager_calls_vllms_own_loggers_after_the_snapshot_was_taken_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vllm.v1.metrics.loggers")  # Else there is none to the console.
    seen: list[object] = []

    def record(_logger: StatLoggerBase, stats: SchedulerStats, *_args: object, **_kwargs: object) -> None:
        seen.append(stats.kv_connector_stats)

    for logger in (LoggingStatLogger, RayPrometheusStatLogger):
        monkeypatch.setattr(logger, "record", record)
    make_manager(EngineStatistics()).record(stats_with(SNAPSHOT), IterationStats(), None, 0)
    assert seen == [None, None]


def test_manager_takes_an_output_without_statistics_as_a_word() -> None:
    now_s = [0.0]
    statistics = EngineStatistics(lambda: now_s[0])
    manager = make_manager(statistics)
    now_s[0] = 5.0
    manager.record(None, None, None, 0)
    assert statistics.snapshot(()).age_s == 0.0


def test_manager_has_vllms_metrics_for_ray_and_not_those_for_a_server_of_its_own() -> None:
    loggers = make_manager(EngineStatistics()).stat_loggers
    assert [type(logger) for logger in loggers if isinstance(logger, PrometheusStatLogger)] == [RayPrometheusStatLogger]


def test_manager_does_what_else_vllm_asks_of_every_logger() -> None:
    manager = make_manager(EngineStatistics())
    manager.record_sleep_state(1, 1)
    manager.log()


def test_manager_of_two_engines_is_refused() -> None:
    with pytest.raises(ValueError, match="data_parallel_size must be 1"):
        make_manager(EngineStatistics(), num_engines=2)


def test_vllm_takes_stat_loggers_of_our_shape() -> None:
    assert "stat_loggers" in inspect.signature(AsyncLLM.from_engine_args).parameters
    theirs, ours = (inspect.signature(c.record).parameters for c in (StatLoggerBase, SnapshotLogger))
    assert list(ours) == list(theirs)
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]
    assert not SnapshotLogger.__abstractmethods__
