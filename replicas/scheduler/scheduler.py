"""vLLM's scheduler, with urgent requests first: the step, and what it does to requests.

Owns the mechanism: the queues, and how a request is paused, reclaimed or sent back to be computed again. Who yields to
whom is decided in `policy`. No vLLM method is copied: it acts before vLLM's own `schedule()` and through few override
points; `tests/replicas/scheduler/test_contract.py` lists what it relies on.
"""

from __future__ import annotations

import time
from functools import cached_property
from operator import attrgetter
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from replicas.scheduler.aging import Aging
from replicas.scheduler.class_queue import ClassQueue
from replicas.scheduler.configuration import check_configuration, read_settings
from replicas.scheduler.counts import PreemptionCounts
from replicas.scheduler.eviction import EvictionByClass
from replicas.scheduler.kv_blocks import KVBlocks
from replicas.scheduler.pacing import Pacing
from replicas.scheduler.policy import plan_step, plan_tokens
from replicas.scheduler.refusals import Refusals
from replicas.scheduler.step_view import StepView, class_of
from replicas.scheduler.victims import FreedBlocks, choose_reclaimed
from replicas.scheduler.views import StepPlan

_RUNNING_ORDER = attrgetter("is_prefill_chunk", "priority", "arrival_time")


class PriorityScheduler(Scheduler):
    """Give it to vLLM as `--scheduling-policy priority --scheduler-cls replicas.scheduler.PriorityScheduler`.

    The engine's core calls `schedule()` and `update_from_output()` in turn, in one thread. Where the engine schedules
    asynchronously, the instance is an `AsyncPriorityScheduler`. Settings come from
    `additional_config["expresslane"]`, see `slo.settings.scheduling.SchedulerSettings`.

    Raises:
        ValueError: at start-up, for another scheduling policy, a model it cannot serve, or wrong settings.
    """

    def __new__(cls, vllm_config: VllmConfig, *_args: Any, **_kwargs: Any) -> PriorityScheduler:
        if cls is PriorityScheduler and vllm_config.scheduler_config.async_scheduling:
            cls = AsyncPriorityScheduler
        return super().__new__(cls)

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        check_configuration(vllm_config)
        self.settings = read_settings(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)
        self.waiting = ClassQueue()
        self.kv_holding_waiting = ClassQueue(is_open=self._may_holder_go_first)
        self.kv_blocks = KVBlocks(self)
        self.eviction = EvictionByClass(self)
        self.preemption_counts = PreemptionCounts()
        self.refusals = Refusals()
        self.aging = Aging(self)
        self.pacing = Pacing(self)
        self._plan = StepPlan()
        self._token_caps: dict[str, int] = {}
        self._victims_of_step: list[Request] = []
        self._has_engine_preempted = False

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self.aging.lift_due()
        self._order_running()
        self.max_num_scheduled_tokens = self.pacing.plan()
        self._plan_step(throttle_prefills)
        self._make_room()
        self._reclaim_for_growth()
        self._has_engine_preempted = False
        output = super().schedule(throttle_prefills)
        self._settle(output)
        self.pacing.begin(output)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        self.pacing.end()
        return super().update_from_output(scheduler_output, model_runner_output)

    def _order_running(self) -> None:
        """Decodes before prefills, so that no stream stalls; then by class and arrival."""
        self.running.sort(key=_RUNNING_ORDER)

    def _plan_step(self, throttle_prefills: bool) -> None:
        self._plan, self._token_caps = StepPlan(), {}
        is_throttled = throttle_prefills and not self.prefill_capacity_bound
        if self._pause_state != PauseState.UNPAUSED or is_throttled:
            return
        view = StepView(self)
        if view.is_contended():
            self._plan = plan_step(
                view.list_askers(), view.room, view.list_holders, self.kv_blocks.held_by, self.settings.preemption
            )
            self._token_caps = plan_tokens(view.prefills, self._plan, view.room)

    def _make_room(self) -> None:
        yielding = self._plan.yielding
        for request_id in yielding.reclaim:
            self._reclaim(self.requests[request_id])
        for request_id in yielding.recompute:
            self._recompute(self.requests[request_id])
        for request_id in yielding.pause:
            self._pause(self.requests[request_id])

    def _reclaim_for_growth(self) -> None:
        """vLLM's own preemption under memory pressure does not see paused requests: they give way before it acts."""
        view = StepView(self)
        if view.paused:
            short_blocks, holders = view.find_shortage()
            if short_blocks > 0:
                for holder in choose_reclaimed(holders, short_blocks, FreedBlocks(self.kv_blocks.held_by)):
                    self._reclaim(self.requests[holder.request_id])

    def _settle(self, output: SchedulerOutput) -> None:
        """Victims join a queue only now, so that none resumes in the step in which it was preempted."""
        for request in self._victims_of_step:
            self._enqueue_waiting_request(request)
        self._victims_of_step.clear()
        self.aging.note_step(output)
        self._token_caps = {}
        self.eviction.note_scheduled(output)
        self._note_refusals(output)

    def _note_refusals(self, output: SchedulerOutput) -> None:
        if len(self.refusals):
            self.refusals.keep_only(self.requests.keys())
        if self._has_engine_preempted:
            return  # vLLM does not look at waiting requests in a step in which its own preemption acted.
        for asker in self._plan.joins:
            request = self.requests[asker.request_id]
            if request.request_id in output.num_scheduled_tokens:
                self.refusals.forget(request.request_id)
            elif request.status != RequestStatus.WAITING_FOR_REMOTE_KVS:
                self.refusals.note(request.request_id, self.current_step)
                self.preemption_counts.num_refused += 1

    def _pause(self, request: Request) -> None:
        """Take its run slot and leave its KV where it is; vLLM resumes it from `kv_holding_waiting` without copying.

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

    def _recompute(self, request: Request) -> None:
        """Take its run slot and its KV, as vLLM does when it runs out of KV."""
        self._leave_slot(request)
        self._preempt_request(request, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        self.waiting.remove_request(request)

    def _leave_slot(self, request: Request) -> None:
        self.running.remove(request)
        # vLLM tells the V1 runner all tokens of a request only if it is not in this set, and the runner, which drops a
        # preempted request from its batch, needs them.
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        self._victims_of_step.append(request)

    def _reclaim(self, request: Request) -> None:
        """A paused request gives up its KV too, and waits to be computed again."""
        self.preemption_counts.add_reclaimed(request.num_computed_tokens)
        self.kv_holding_waiting.remove_request(request)
        self._free_request_blocks(request)
        request.num_computed_tokens = 0
        self._enqueue_waiting_request(request)

    def can_pause(self, request: Request) -> bool:
        """Whether `request` can keep its KV without a slot; what cannot is computed again.

        Rejected draft tokens of steps in flight are not rolled back for a paused request, nor is output that vLLM has
        already decided to drop. A connector, an encoder cache and the states of Mamba layers and pipeline stages follow
        a request only while it runs or is freed.
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
            and self.connector is None
            and self.ec_connector is None
            and self.aux_output_connector is None
            and not self.use_pp
            and not self.is_encoder_decoder
            and not self.has_mamba_layers
            and not self.prefix_replay_tokens
        )

    def _may_holder_go_first(self) -> bool:
        """vLLM admits waiting requests that hold KV before all others. Here a more urgent one, if the plan admits it or
        makes room for it, goes before them; one that cannot run yet does not hold them up. No plan, no such one."""
        if not len(self.waiting):
            return True
        first = self.waiting.peek_request()
        is_outranked = class_of(first).outranks(class_of(self.kv_holding_waiting.peek_request()))
        return not (is_outranked and first.request_id in self._plan.ahead)

    def add_request(self, request: Request) -> None:
        """Clamp the priority to a class: wherever vLLM compares priorities, it then compares classes."""
        request.priority = class_of(request).level
        self.pacing.note_arrival(request)
        super().add_request(request)
        self.aging.resume_wait(request.request_id)

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """vLLM asks this last about the size of every chunk; for a running request, 0 means not in this step."""
        if num_new_tokens > self.pacing.decode_tokens:  # A decode is never cut.
            cap = self._token_caps.get(request.request_id)
            cap = self.pacing.max_chunk(request) if cap is None else cap
            if cap < num_new_tokens:
                num_new_tokens = self._cut_chunk(request, num_new_tokens, cap)
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)

    def _cut_chunk(self, request: Request, num_new_tokens: int, cap: int) -> int:
        if cap > 0 and request.has_encoder_inputs:
            return num_new_tokens  # A chunk must not end inside an image; vLLM has chosen where it ends.
        if cap > 0 and self.need_mamba_block_aligned_split:
            return self._mamba_block_aligned_split(request, cap)
        return cap

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Count it; vLLM calls this when a running request cannot grow, and for a reset of the prefix cache."""
        self._has_engine_preempted = True
        self.preemption_counts.add_recomputed(class_of(request), request.num_computed_tokens)
        super()._preempt_request(request, timestamp, drop_stale_output)
        self.aging.note_preemption(request)
        self.aging.begin_wait(request)

    def _enqueue_waiting_request(self, request: Request) -> None:
        self.aging.begin_wait(request)
        super()._enqueue_waiting_request(request)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        self.aging.forget(request)
        return super()._free_request(request, delay_free_blocks)

    def _free_request_blocks(self, request: Request) -> None:
        """vLLM gives blocks up here, whether at once or after the steps in flight, but for what layers let go early."""
        self.eviction.note_freed(request)
        super()._free_request_blocks(request)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Paused requests hold blocks too: with `reset_running_requests` they give them up like the running ones."""
        if reset_running_requests:
            for request in StepView(self).paused:
                self._reclaim(request)
        is_reset = super().reset_prefix_cache(reset_running_requests, reset_connector)
        self.eviction.note_reset()
        return is_reset

    def check_invariants(self) -> None:
        """For tests, between steps: each request is in one place, and only those that hold KV are where KV is held."""
        self.waiting.check_invariants()
        self.kv_holding_waiting.check_invariants()
        self.aging.check_invariants()
        self.eviction.check_invariants()
        assert not self._victims_of_step
        places = [r.request_id for r in (*self.running, *self.waiting, *self.kv_holding_waiting)]
        assert len(places) == len(set(places)), f"a request is in two places: {sorted(places)}"
        assert set(places) == {i for i, r in self.requests.items() if not r.is_finished()}
        assert all(r.status == RequestStatus.RUNNING for r in self.running)
        assert not any(self._holds_kv_blocks(r) for r in self.waiting)
        assert all(self.kv_blocks.held_by(r.request_id) for r in self.kv_holding_waiting)
        assert not any(self.kv_blocks.held_by(r.request_id) for r in self.waiting)


class AsyncPriorityScheduler(PriorityScheduler, AsyncScheduler):
    """The same beside a step in flight; `PriorityScheduler` becomes this where the engine schedules asynchronously."""
