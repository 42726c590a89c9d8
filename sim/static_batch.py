"""Static batching, to compare with: a new batch begins only when the last one is done."""

from __future__ import annotations

from collections import deque

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class StaticBatch:
    """Keeps requests from a scheduler while it has any; then gives it as many as it has slots."""

    def __init__(self) -> None:
        self._held: deque[Request] = deque()

    @property
    def has_requests(self) -> bool:
        return bool(self._held)

    def hold(self, request: Request) -> None:
        """A request has come."""
        self._held.append(request)

    def release(self, scheduler: Scheduler) -> None:
        """Called before each step is scheduled."""
        if not self._held or scheduler.has_unfinished_requests():
            return
        for _ in range(min(len(self._held), scheduler.max_num_running_reqs)):
            scheduler.add_request(self._held.popleft())
