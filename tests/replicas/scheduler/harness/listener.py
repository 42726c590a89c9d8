"""A scheduler that is asked for statistics, as in a replica, and what it has told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from replicas.scheduler import PriorityScheduler
from replicas.snapshot_codec import take
from slo.settings.scheduling import SchedulerSettings
from slo.snapshots import EngineSnapshot
from tests.replicas.scheduler.harness.build import EngineShape, build_scheduler
from tests.replicas.scheduler.harness.driver import Driver


@dataclass(slots=True)
class Listener:
    """A driver, and each snapshot that its scheduler gave vLLM to send."""

    driver: Driver
    told: list[EngineSnapshot] = field(default_factory=list)
    make_stats: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        self.make_stats = self.scheduler.make_stats
        self.scheduler.make_stats = self._listen

    @property
    def scheduler(self) -> Scheduler:
        return self.driver.scheduler

    def _listen(self, *args: Any, **kwargs: Any) -> Any:
        stats = self.make_stats(*args, **kwargs)
        if stats is not None and (snapshot := take(stats)) is not None:
            self.told.append(snapshot)
        return stats

    def now(self) -> EngineSnapshot:
        """What a snapshot that was due now would say."""
        return self.scheduler.statistics._snapshot()


def make_listener(settings: SchedulerSettings | None = None, **shape: Any) -> Listener:
    engine = EngineShape(**{"max_num_seqs": 2, "has_statistics": True, **shape})
    scheduler = build_scheduler(engine, settings)
    assert isinstance(scheduler, PriorityScheduler)
    return Listener(Driver(scheduler, depth=2 if engine.is_async else 1))
