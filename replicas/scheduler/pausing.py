"""vLLM's scheduler with one more thing that it can do to a running request: pause it.

A paused request has left its run slot and kept its KV on the device; vLLM resumes it from `kv_holding_waiting` without
copying. Owns what a pause does to a request and when it would be wrong; who is paused is decided in `policy`.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import Request, RequestStatus

from replicas.kv_swap.connector import SwapConnector
from replicas.scheduler.step_view import class_of

if TYPE_CHECKING:
    from replicas.scheduler.aging import Aging
    from replicas.scheduler.counts import PreemptionCounts


class PausingScheduler(Scheduler):
    """What `PriorityScheduler` is made on. Victims wait in `_victims_of_step` until the step is scheduled."""

    aging: Aging
    preemption_counts: PreemptionCounts
    _victims_of_step: list[Request]

    def _pause(self, request: Request) -> None:
        """Take its run slot and leave its KV where it is.

        Output of steps in flight is delivered when it arrives, and counts as stale until then: vLLM resumes no request
        before that, so no position is sampled twice.
        """
        self._leave_slot(request)
        self._inflight_prefills.discard(request)
        request.status = RequestStatus.PREEMPTED
        request.drop_stale_output = False
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        request.num_preemptions += 1
        if self.log_stats:
            request.record_event(EngineCoreEventType.PREEMPTED, time.monotonic())
        self.reset_preempted_req_ids.add(request.request_id)
        self.preemption_counts.add_paused(class_of(request))
        self.aging.note_preemption(request)

    def _leave_slot(self, request: Request) -> None:
        self.running.remove(request)
        # vLLM tells the V1 runner all tokens of a request only if it is not in this set, and the runner, which drops a
        # preempted request from its batch, needs them.
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        self._victims_of_step.append(request)

    def can_pause(self, request: Request) -> bool:
        """Whether `request` can keep its KV without a slot; what cannot is swapped out or computed again.

        Rejected draft tokens of steps in flight are not rolled back for a paused request, nor is output that vLLM has
        already decided to drop. A connector (but for our own, which asks nothing of a request that keeps its KV), an
        encoder cache and the states of Mamba layers and pipeline stages follow a request only while it runs or is
        freed.
        """
        sampling = request.sampling_params
        return (
            self._engine_can_pause
            and sampling is not None
            and sampling.prompt_logprobs is None
            and request.num_stale_output_tokens == 0
            and not request.has_encoder_inputs
            and not request.resumable
        )

    @cached_property
    def _engine_can_pause(self) -> bool:
        return (
            self.num_spec_tokens == 0
            and self.num_sampled_tokens_per_step == 1
            and (self.connector is None or isinstance(self.connector, SwapConnector))
            and self.ec_connector is None
            and self.aux_output_connector is None
            and not self.use_pp
            and not self.is_encoder_decoder
            and not self.has_mamba_layers
            and not self.prefix_replay_tokens
        )
