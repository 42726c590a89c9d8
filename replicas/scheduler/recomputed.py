"""Counts tokens that are computed again because of preemption: what a request had, less what it has when it resumes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request


class RecomputedTokens:
    """Knows the requests that gave up their KV and have not resumed. Costs O(1) for each that does or resumes."""

    def __init__(self) -> None:
        self._had: dict[str, int] = {}
        self.num_tokens = 0

    def note_given_up(self, request: Request) -> None:
        """`request` is about to give up its KV, whether it comes back or not."""
        self._had[request.request_id] = max(request.num_computed_tokens, self._had.get(request.request_id, 0))

    def note_step(self, output: SchedulerOutput, requests: Mapping[str, Request]) -> None:
        """After a step was scheduled: those that resume in it begin where their KV ends."""
        if not self._had:
            return
        resumed = chain((r.req_id for r in output.scheduled_new_reqs), output.scheduled_cached_reqs.resumed_req_ids)
        for request_id in resumed:
            had = self._had.pop(request_id, None)
            if had is not None:
                begins_at = requests[request_id].num_computed_tokens - output.num_scheduled_tokens[request_id]
                self.num_tokens += max(0, had - begins_at)

    def forget(self, request: Request) -> None:
        """It has ended."""
        self._had.pop(request.request_id, None)

    def __len__(self) -> int:
        return len(self._had)
