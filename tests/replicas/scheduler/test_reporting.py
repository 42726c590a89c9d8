"""Where the scheduler's statistics are hooked into vLLM, and what is relied on there.

Mutations tried by hand, each found by a test here: vLLM's own statistics dropped; an argument of `make_stats` not
passed on; a cache that could not be reset forgotten all the same.
"""

from __future__ import annotations

import inspect

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import SchedulerStats

from replicas.scheduler.reporting import ReportingScheduler
from replicas.snapshot_codec import STATISTICS_KEY
from slo.priority import PriorityClass
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("add_request", ["self", "request"]),
        ("schedule", ["self", "throttle_prefills"]),
        ("reset_prefix_cache", ["self", "reset_running_requests", "reset_connector"]),
    ],
)
def test_vllm_method_that_is_overridden_has_kept_its_parameters(name, parameters) -> None:
    theirs = inspect.signature(getattr(Scheduler, name)).parameters
    ours = inspect.signature(vars(ReportingScheduler)[name]).parameters
    assert list(theirs) == list(ours) == parameters
    assert [p.default for p in theirs.values()] == [p.default for p in ours.values()]


@pytest.mark.parametrize(
    "attribute",
    [
        "vllm_config",
        "cache_config",
        "kv_cache_config",
        "parallel_config",
        "kv_cache_manager",
        "block_size",
        "hash_block_size",
        "log_stats",
        "requests",
        "max_num_running_reqs",
        "get_request_counts",
    ],
)
def test_vllm_scheduler_has_kept_an_attribute(attribute) -> None:
    assert hasattr(build_scheduler(scheduler_cls=Scheduler), attribute), f"vLLM's Scheduler has no {attribute} any more"


def test_vllm_statistics_have_the_field_in_which_a_snapshot_rides() -> None:
    assert SchedulerStats().kv_connector_stats is None
    assert Scheduler.make_stats.__annotations__["return"] == SchedulerStats | None


def test_vllm_makes_statistics_after_each_step_and_with_its_own_content() -> None:
    scheduler = build_scheduler(EngineShape(has_statistics=True))
    made: list[SchedulerStats] = []
    make_stats = scheduler.make_stats

    def keep(*args, **kwargs):
        made.append(make_stats(*args, **kwargs))
        return made[-1]

    scheduler.make_stats = keep
    driver = Driver(scheduler)
    driver.add("a", PriorityClass.P0)
    driver.steps(3)
    assert [stats.num_running_reqs for stats in made] == [1, 1, 1]
    assert [stats.kv_connector_stats is not None for stats in made] == [True, False, False]


def test_reporting_sends_a_connector_s_statistics_beside_its_own() -> None:
    scheduler = build_scheduler(EngineShape(has_statistics=True))
    Driver(scheduler).add("a", PriorityClass.P0)
    stats = scheduler.make_stats(None, KVConnectorStats({"num_loads": 3}))
    assert stats.kv_connector_stats.keys() == {"num_loads", STATISTICS_KEY}
    assert scheduler.make_stats(kv_connector_stats=KVConnectorStats({"num_loads": 4})).kv_connector_stats == {
        "num_loads": 4
    }


def test_reporting_forgets_what_was_cached_only_when_the_cache_was_reset() -> None:
    scheduler = build_scheduler(EngineShape(has_statistics=True))
    driver, reuse = Driver(scheduler), scheduler.statistics.reuse
    driver.add("a", PriorityClass.P0, 40, max_tokens=30)
    driver.steps(2)
    reuse.sweep(scheduler.requests)
    assert len(reuse._known) == 2
    assert not scheduler.reset_prefix_cache()
    assert len(reuse._known) == 2
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert len(reuse._known) == 0
