"""Static batching as a scheduler of vLLM's server, to compare with: `--scheduler-cls` takes its name.

Requests wait outside vLLM's queue while a batch runs; when nothing runs any more, as many as there are run slots go in
together, in the order in which they came. The same rule as `sim.static_batch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus


class StaticBatchScheduler(Scheduler):
    """vLLM's scheduler, given a new batch only when the last request of the one before is done.

    Overrides, of vLLM 0.32.0: `_enqueue_waiting_request` (each new request comes through it), `get_request_counts`
    (what the engine knows of who waits), `finish_requests` (a client that leaves while it waits) and `schedule`.
    """

    def __new__(cls, vllm_config: VllmConfig, *_args: Any, **_kwargs: Any) -> StaticBatchScheduler:
        if cls is StaticBatchScheduler and vllm_config.scheduler_config.async_scheduling:
            cls = AsyncStaticBatchScheduler
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._held: deque[Request] = deque()
        super().__init__(*args, **kwargs)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        if self._held and not any(super().get_request_counts()):
            for _ in range(min(len(self._held), self.max_num_running_reqs)):
                super()._enqueue_waiting_request(self._held.popleft())
        return super().schedule(throttle_prefills)

    def get_request_counts(self) -> tuple[int, int]:
        num_running, num_waiting = super().get_request_counts()
        return num_running, num_waiting + len(self._held)

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        finished: list[Request] = super().finish_requests(request_ids, finished_status)
        if finished:
            self._held = deque(request for request in self._held if not request.is_finished())
        return finished

    def _enqueue_waiting_request(self, request: Request) -> None:
        self._held.append(request)


class AsyncStaticBatchScheduler(StaticBatchScheduler, AsyncScheduler):
    """The same beside a step in flight: what `StaticBatchScheduler` becomes where steps are scheduled ahead."""
