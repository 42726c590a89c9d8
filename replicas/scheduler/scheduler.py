"""vLLM's scheduler, with urgent requests first: the step, and what it does to requests.

Owns the mechanism: the queues, and how a request is reclaimed, swapped out or sent back to be computed again. Who
yields to whom is decided in `policy`. No vLLM method is copied: it acts before vLLM's own `schedule()` and through few
override points; `tests/replicas/scheduler/test_contract.py` lists what it relies on.
"""

from __future__ import annotations

import time
from operator import attrgetter
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from replicas.scheduler.adapters import AdapterScheduler
from replicas.scheduler.aging import Aging
from replicas.scheduler.class_queue import ClassQueue
from replicas.scheduler.configuration import check_configuration, read_settings
from replicas.scheduler.counts import PreemptionCounts
from replicas.scheduler.eviction import EvictionByClass
from replicas.scheduler.kv_blocks import KVBlocks
from replicas.scheduler.pacing import Pacing
from replicas.scheduler.policy import plan_step, plan_tokens
from replicas.scheduler.recomputed import RecomputedTokens
from replicas.scheduler.refusals import Refusals
from replicas.scheduler.step_view import StepView, class_of
from replicas.scheduler.swapping import Swapping
from replicas.scheduler.victims import FreedBlocks, choose_reclaimed
from replicas.scheduler.views import StepPlan

_RUNNING_ORDER = attrgetter("is_prefill_chunk", "priority", "arrival_time")


class PriorityScheduler(AdapterScheduler):
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
        self.waiting = ClassQueue(is_open=self._may_admit)
        self.kv_holding_waiting = ClassQueue(is_open=self._may_holder_go_first)
        self.kv_blocks = KVBlocks(self)
        self.eviction = EvictionByClass(self)
        self.preemption_counts = PreemptionCounts()
        self.recomputed = RecomputedTokens()
        self.swapping = Swapping(self)
        self.refusals = Refusals()
        self.aging = Aging(self)
        self.pacing = Pacing(self)
        self._plan = StepPlan()
        self._token_caps: dict[str, int] = {}
        self._victims_of_step: list[Request] = []
        self._has_engine_preempted = False
        self._is_growth_short = False

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self.swapping.begin_step()
        self.aging.lift_due()
        self._order_running()
        self.max_num_scheduled_tokens = self.pacing.plan()
        self._plan_step(throttle_prefills)
        self._make_room()
        self._reclaim_for_growth()
        self._leave_room()
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
        self._plan, self._token_caps, self._seen_running = StepPlan(), {}, None
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
        self.swapping.plan(yielding.exits, self._plan.refused)
        if self._plan.releases_kept:
            self.swapping.release_kept()
        for request_id in yielding.reclaim:
            self._reclaim(self.requests[request_id])
        for request_id in yielding.recompute + yielding.swap:
            self._give_up_kv(self.requests[request_id])
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

    def _leave_room(self) -> None:
        """What vLLM must not give to waiting requests: slots of those that are being loaded, and, while running
        requests cannot grow until copies in flight are done, blocks."""
        self.swapping.reserve_slots(self.num_run_slots - len(self.running), len(self._plan.joins))
        self._is_growth_short = self.swapping.is_freeing and StepView(self).room.blocks < 0

    def _settle(self, output: SchedulerOutput) -> None:
        """Victims join a queue only now, so that none resumes in the step in which it was preempted."""
        for request in self._victims_of_step:
            self._enqueue_waiting_request(request)
        self._victims_of_step.clear()
        self._is_growth_short = False
        self.swapping.end_step(output)
        self.recomputed.note_step(output, self.requests)
        self.preemption_counts.num_recomputed_tokens = self.recomputed.num_tokens
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

    def _give_up_kv(self, request: Request) -> None:
        """Take its run slot and its KV, as vLLM does when it runs out of KV; it is swapped out if that was planned."""
        self._leave_slot(request)
        self._preempt_request(request, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        self.waiting.remove_request(request)

    def _reclaim(self, request: Request, may_swap: bool = True) -> None:
        """A paused request gives up its KV too, and waits for it to be loaded or computed again."""
        self.recomputed.note_given_up(request)
        if may_swap and self.swapping.secure(request):
            self.preemption_counts.add_reclaimed_swapped(class_of(request))
        else:
            self.preemption_counts.add_reclaimed(class_of(request), request.num_computed_tokens)
        self.kv_holding_waiting.remove_request(request)
        self._free_request_blocks(request)
        request.num_computed_tokens = 0
        self._enqueue_waiting_request(request)

    def _may_holder_go_first(self) -> bool:
        """vLLM admits waiting requests that hold KV before all others. Here a more urgent one, if the plan admits it or
        makes room for it, goes before them; one that cannot run yet does not hold them up. No plan, no such one."""
        if self._is_growth_short or not len(self.waiting):
            return not self._is_growth_short
        first = self.waiting.peek_request()
        is_outranked = class_of(first).outranks(class_of(self.kv_holding_waiting.peek_request()))
        return not (is_outranked and first.request_id in self._plan.ahead)

    def _may_admit(self) -> bool:
        return not self._is_growth_short

    @property
    def max_num_active_reqs(self) -> int:
        """Run slots that vLLM may fill: without those kept for requests whose KV is on its way in."""
        return self.num_run_slots - self.swapping.num_reserved_slots

    @max_num_active_reqs.setter
    def max_num_active_reqs(self, num_run_slots: int) -> None:
        self.num_run_slots = num_run_slots

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
        if not self.num_prefill_lookahead:  # Asked for every running request: vLLM's answer without its call.
            return num_new_tokens if num_new_tokens > 0 else 0
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)

    def _cut_chunk(self, request: Request, num_new_tokens: int, cap: int) -> int:
        if cap > 0 and request.has_encoder_inputs:
            return num_new_tokens  # A chunk must not end inside an image; vLLM has chosen where it ends.
        if cap > 0 and self.need_mamba_block_aligned_split:
            return self._mamba_block_aligned_split(request, cap)
        return cap

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Secure its KV if that is right, and count it; vLLM calls this when a running request cannot grow, and for a
        reset of the prefix cache, after which KV from before must not be used (`drop_stale_output`)."""
        self._has_engine_preempted = True
        self.recomputed.note_given_up(request)
        if not drop_stale_output and self.swapping.secure(request):
            self.preemption_counts.add_swapped(class_of(request))
        else:
            self.preemption_counts.add_recomputed(class_of(request), request.num_computed_tokens)
        super()._preempt_request(request, timestamp, drop_stale_output)
        self.aging.note_preemption(request)
        self.aging.begin_wait(request)

    def _enqueue_waiting_request(self, request: Request) -> None:
        self.aging.begin_wait(request)
        super()._enqueue_waiting_request(request)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        self.aging.forget(request)
        self.swapping.forget(request)
        self.recomputed.forget(request)
        return super()._free_request(request, delay_free_blocks)

    def _free_request_blocks(self, request: Request) -> None:
        """vLLM gives blocks up here, whether at once or after the steps in flight, but for what layers let go early."""
        self.eviction.note_freed(request)
        super()._free_request_blocks(request)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Paused requests hold blocks too: with `reset_running_requests` they give them up like the running ones.

        KV that was swapped out is not used after a reset either. A load in flight stands in the way of one, as in vLLM,
        where it is an error; here nothing is reset then, as when a request runs, and the caller may ask again.
        """
        self.swapping.begin_step()
        if reset_running_requests:
            for request in StepView(self).paused:
                self._reclaim(request, may_swap=False)
        can_reset = True
        if reset_running_requests or not (self.running or len(self.kv_holding_waiting)):
            can_reset = self.swapping.reset()
        try:
            is_reset = super().reset_prefix_cache(reset_running_requests, reset_connector)
        except RuntimeError:
            if can_reset:
                raise
            is_reset = False
        self.eviction.note_reset()
        return is_reset

    def check_invariants(self) -> None:
        """For tests, between steps: each request is in one place, and only those that hold KV are where KV is held."""
        self.waiting.check_invariants()
        self.kv_holding_waiting.check_invariants()
        self.aging.check_invariants()
        self.eviction.check_invariants()
        self.swapping.check_invariants()
        self.statistics.check_invariants()
        assert not self._victims_of_step
        places = [r.request_id for r in (*self.running, *self.waiting, *self.kv_holding_waiting)]
        assert len(places) == len(set(places)), f"a request is in two places: {sorted(places)}"
        assert set(places) == {i for i, r in self.requests.items() if not r.is_finished()}
        assert all(r.status == RequestStatus.RUNNING for r in self.running)
        assert self.max_adapters is None or len(self.adapters_running()) <= self.max_adapters
        assert not any(self._holds_kv_blocks(r) for r in self.waiting)
        assert all(self.kv_blocks.held_by(r.request_id) for r in self.kv_holding_waiting)
        assert not any(self.kv_blocks.held_by(r.request_id) for r in self.waiting)


class AsyncPriorityScheduler(PriorityScheduler, AsyncScheduler):
    """The same beside a step in flight; `PriorityScheduler` becomes this where the engine schedules asynchronously."""
