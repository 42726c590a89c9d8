"""Fairness carried out: tells the book who waits and who runs, and changes the class that a request counts as.

That is `request.priority`: the queues, the choice of victims, the running order and vLLM's own preemption under memory
pressure all read it, so they agree about a lifted request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from replicas.scheduler.fairness import Wait, can_be_preempted_again
from replicas.scheduler.step_view import class_of
from replicas.scheduler.waits import WaitBook
from slo.priority import PriorityClass

if TYPE_CHECKING:
    from replicas.scheduler.scheduler import PriorityScheduler

_LEVEL_OF = attrgetter("priority")
_IS_PREFILL = attrgetter("is_prefill_chunk")


class Aging:
    """One scheduler's fairness. `clock` gives monotonic seconds; a simulation puts its own in."""

    def __init__(self, scheduler: PriorityScheduler) -> None:
        self.clock = time.monotonic
        self._scheduler = scheduler
        self._settings = scheduler.settings.fairness
        self._ran_last: list[Request] = []
        self._stood_last: list[str] = []
        self.book = WaitBook(self._settings)

    def lift_due(self) -> None:
        """Before a step is planned: those that have waited too long count as one class more."""
        scheduler, now_s = self._scheduler, self.clock()
        if not self.book.is_any_due(now_s):
            return
        level = max(map(_LEVEL_OF, self._ran_last), default=None)
        lowest_running = None if level is None else PriorityClass.from_level(level)
        for request_id, counts_as in self.book.lift_due(now_s, lowest_running):
            self._count_as(scheduler.requests[request_id], counts_as)
            scheduler.preemption_counts.num_promotions += 1

    def begin_wait(self, request: Request) -> None:
        """`request` has joined a queue; called again while it waits, it changes nothing."""
        if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:  # It waits for its client, not for its turn.
            self._count_as(request, self.book.own_class(request.request_id, class_of(request)))
            self.book.forget(request.request_id)
        else:
            has_kv = request.num_computed_tokens > 0 or self._scheduler.swapping.is_swapped(request)
            is_suspended = request.is_prefill_chunk and has_kv
            self._begin(request, is_suspended)

    def resume_wait(self, request_id: str) -> None:
        """A request has come, or more input for a session, which then waits for its turn again."""
        request = self._scheduler.requests.get(request_id)
        if request is not None and request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            self.begin_wait(request)

    def note_step(self, output: SchedulerOutput) -> None:
        """After a step was scheduled: who runs waits no more, and a lifted one that has had its grain sinks back. A
        running prefill that got no tokens waits for them."""
        scheduler, scheduled = self._scheduler, output.num_scheduled_tokens
        for request_id in self._started(output):
            self.book.end(request_id)
        for request_id in self.book.lifted_ids:
            if request_id in scheduled:
                request = scheduler.requests[request_id]
                num_left = max(0, request.num_tokens - request.num_computed_tokens)
                own = self.book.note_run(request_id, scheduled[request_id], num_left)
                if own is not None:
                    self._count_as(request, own)
        standing = [r for r in filter(_IS_PREFILL, scheduler.running) if r.request_id not in scheduled]
        for request in standing:
            self._begin(request, is_suspended_prefill=True)
        self._stood_last = [r.request_id for r in standing]
        # Kept, as the last of a class may have ended when the next step begins, though the class is served.
        self._ran_last = scheduler.running.copy()

    def forget(self, request: Request) -> None:
        """`request` has ended, as one of its own class: its blocks may be given up later."""
        request.priority = self.book.own_class(request.request_id, class_of(request)).level
        self.book.forget(request.request_id)

    def can_be_preempted(self, request: Request) -> bool:
        return can_be_preempted_again(request.num_preemptions, self._settings)

    def note_preemption(self, request: Request) -> None:
        """`request` was preempted: it is counted when that was the last time that it can be a victim."""
        is_at_cap = request.num_preemptions == self._settings.max_preemptions_per_request
        self._scheduler.preemption_counts.num_capped += is_at_cap

    def check_invariants(self) -> None:
        """For tests, between steps: the book knows all who wait, nobody who is gone, and their classes."""
        self.book.check_invariants()
        requests = self._scheduler.requests
        queued = {r.request_id for q in (self._scheduler.waiting, self._scheduler.kv_holding_waiting) for r in q}
        blocked = {i for i in queued if requests[i].status == RequestStatus.WAITING_FOR_STREAMING_REQ}
        assert queued - blocked <= self.book.waiting_ids <= requests.keys() - blocked
        standing = {r.request_id for r in self._scheduler.running if r.is_prefill_chunk}
        assert self.book.waiting_ids - queued <= standing, "it runs, and waits by the book"
        for request_id in self.book.lifted_ids:
            assert self.book.own_class(request_id, PriorityClass.P0).level > requests[request_id].priority

    def _started(self, output: SchedulerOutput) -> Iterator[str]:
        """Those that got tokens in this step and none before: looking for every one that runs would cost each step."""
        yield from (new.req_id for new in output.scheduled_new_reqs)
        yield from output.scheduled_cached_reqs.resumed_req_ids
        yield from (i for i in self._stood_last if i in output.num_scheduled_tokens)

    def _begin(self, request: Request, is_suspended_prefill: bool) -> None:
        self.book.begin(request.request_id, Wait(class_of(request), self.clock(), is_suspended_prefill))

    def _count_as(self, request: Request, counts_as: PriorityClass) -> None:
        request.priority = counts_as.level
        for queue in (self._scheduler.waiting, self._scheduler.kv_holding_waiting):
            if request in queue:
                queue.add_request(request)
