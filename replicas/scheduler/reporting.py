"""vLLM's scheduler, that can also tell what it does: the points at which `SchedulerStatistics` is told, and tells."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request

from replicas.scheduler.pausing import PausingScheduler
from replicas.scheduler.statistics import SchedulerStatistics


class ReportingScheduler(PausingScheduler):
    """What `AdapterScheduler` is made on. Changes nothing of what is scheduled."""

    @cached_property
    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(self)

    def add_request(self, request: Request) -> None:
        self.statistics.note_arrival(request)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        output = super().schedule(throttle_prefills)
        self.statistics.note_step(output)
        return output

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        is_reset = super().reset_prefix_cache(reset_running_requests, reset_connector)
        if is_reset:
            self.statistics.reuse.note_reset()
        return is_reset

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """vLLM calls this after each step for what it sends to the replica's process."""
        return self.statistics.add_to(super().make_stats(*args, **kwargs))
