"""One step of the scheduler, read into the values that the policy decides on. Changes nothing but the status of a
waiting request whose grammar is ready, which vLLM itself does only when it has a free slot."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from vllm.v1.request import Request, RequestStatus

from replicas.scheduler.policy import Prefill
from replicas.scheduler.views import Asker, Holder, Room
from slo.priority import PriorityClass

if TYPE_CHECKING:
    from replicas.scheduler.scheduler import PriorityScheduler


_LEVEL_OF = attrgetter("priority")


class StepView:
    """What the plan of one step needs to know; everything is read when it is asked for, and only once."""

    def __init__(self, scheduler: PriorityScheduler) -> None:
        self._scheduler = scheduler
        self._kv = scheduler.kv_blocks

    @cached_property
    def paused(self) -> list[Request]:
        return [r for r in self._scheduler.kv_holding_waiting if r.status == RequestStatus.PREEMPTED]

    @cached_property
    def lowest_held(self) -> PriorityClass | None:
        """The least urgent class among the requests that hold KV, running or waiting."""
        scheduler = self._scheduler
        holders = chain(scheduler.running, scheduler.kv_holding_waiting)
        level = max(map(_LEVEL_OF, holders), default=None)
        return None if level is None else PriorityClass.from_level(level)

    def is_contended(self) -> bool:
        """Whether a waiting request is more urgent than one that holds KV. If not, vLLM's own order is right."""
        waiting = self._scheduler.waiting
        if not len(waiting) and not len(self._scheduler.kv_holding_waiting):
            return False
        if self.lowest_held is None:
            return False
        heads = (q.peek_request() for q in (waiting, self._scheduler.kv_holding_waiting) if len(q))
        return any(class_of(head).outranks(self.lowest_held) for head in heads)

    def list_askers(self) -> Iterator[Asker]:
        """Those that could run now, in the order in which vLLM looks at them, down to the last that may overtake."""
        scheduler = self._scheduler
        queues = (scheduler.kv_holding_waiting, scheduler.waiting)
        step = scheduler.current_step + 1
        for request in heapq.merge(*queues, key=_LEVEL_OF):
            if self.lowest_held is None or not class_of(request).outranks(self.lowest_held):
                return
            if self._is_loading(request):
                yield Asker(request.request_id, class_of(request), need_blocks=0, need_tokens=0, is_loading=True)
            elif scheduler.refusals.may_ask(request.request_id, step) and self._can_run(request):
                need_blocks, need_tokens, shared = self._kv.need_of(request)
                need_tokens = min(need_tokens, scheduler.pacing.max_chunk(request))
                yield Asker(
                    request.request_id,
                    class_of(request),
                    need_blocks,
                    need_tokens,
                    shared,
                    adapter=adapter_of(request),
                )

    def list_holders(self) -> list[Holder]:
        scheduler = self._scheduler
        running = [
            Holder(
                request_id=r.request_id,
                priority=class_of(r),
                arrival_s=r.arrival_time,
                num_computed_tokens=r.num_computed_tokens,
                growth_blocks=self._growth[r.request_id],
                decode_tokens=0 if r.is_prefill_chunk else scheduler.pacing.decode_tokens,
                can_pause=scheduler.can_pause(r),
                can_yield=not r.resumable and scheduler.aging.can_be_preempted(r),
                can_swap=scheduler.swapping.can_swap(r),
                adapter=adapter_of(r),
            )
            for r in scheduler.running
        ]
        return running + self.list_paused()

    def find_shortage(self) -> tuple[int, list[Holder]]:
        """Blocks that the running requests lack for their next step, and all holders.

        With nothing running: what the waiting holder that resumes first lacks, and the other paused ones.
        """
        scheduler = self._scheduler
        if scheduler.running:
            if self._kv.num_free >= self._kv.most_growth(len(scheduler.running), scheduler.max_num_scheduled_tokens):
                return 0, []
            short_blocks = -self.room.blocks - self.room.freeing_blocks
            return short_blocks, self.list_holders() if short_blocks > 0 else []
        first = next(filter(self._can_run, scheduler.kv_holding_waiting), None)
        if first is None:
            return 0, []
        need_blocks, _, _ = self._kv.need_of(first)
        return need_blocks - self._kv.num_free, [h for h in self.list_paused() if h.request_id != first.request_id]

    def list_paused(self) -> list[Holder]:
        scheduler = self._scheduler
        return [
            Holder(
                request_id=r.request_id,
                priority=class_of(r),
                arrival_s=r.arrival_time,
                num_computed_tokens=r.num_computed_tokens,
                is_paused=True,
                can_swap=scheduler.swapping.can_swap(r),
            )
            for r in self.paused
        ]

    @cached_property
    def prefills(self) -> list[Prefill]:
        return [
            Prefill(
                r.request_id,
                class_of(r),
                min(self._scheduler.pacing.max_chunk(r), r.num_tokens - r.num_computed_tokens),
            )
            for r in self._scheduler.running
            if r.is_prefill_chunk
        ]

    @cached_property
    def room(self) -> Room:
        scheduler = self._scheduler
        prefill_tokens = dict.fromkeys(PriorityClass, 0)
        for prefill in self.prefills:
            prefill_tokens[prefill.priority] += prefill.want_tokens
        kept, num_kept_alone = scheduler.swapping.kept_blocks()
        num_slots_taken = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        return Room(
            slots=scheduler.num_run_slots - num_slots_taken,
            blocks=self._kv.num_free - sum(self._growth.values()),
            freeing_blocks=self._kv.num_freeing + scheduler.swapping.num_freeing,
            defers_frees=scheduler.defer_block_free,
            tokens=self._tokens_beside_decodes,
            prefill_tokens=prefill_tokens,
            num_running=len(scheduler.running),
            watermark_blocks=self._kv.watermark,
            swap=scheduler.swapping.terms(),
            kept=kept,
            kept_alone_blocks=num_kept_alone,
            adapters=scheduler.adapters_running(),
            max_adapters=scheduler.max_adapters,
        )

    @property
    def _tokens_beside_decodes(self) -> int:
        scheduler = self._scheduler
        num_decodes = len(scheduler.running) - len(self.prefills)
        return scheduler.max_num_scheduled_tokens - num_decodes * scheduler.pacing.decode_tokens

    @cached_property
    def _growth(self) -> dict[str, int]:
        """Blocks that each running request takes in this step."""
        scheduler = self._scheduler
        left = max(0, self._tokens_beside_decodes)
        growth = {}
        for request in scheduler.running:
            num_tokens = scheduler.pacing.decode_tokens
            if request.is_prefill_chunk:
                num_tokens = min(left, request.num_tokens - request.num_computed_tokens)
                left -= num_tokens
            growth[request.request_id] = self._kv.growth_of(request, num_tokens)
        return growth

    def _is_loading(self, request: Request) -> bool:
        is_waiting_for_kv = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        return is_waiting_for_kv and request.request_id not in self._scheduler.finished_recving_kv_req_ids

    def _can_run(self, request: Request) -> bool:
        """Whether only a lack of room keeps a waiting request from running."""
        scheduler = self._scheduler
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        if scheduler.swapping.is_leaving(request):
            return False
        match request.status:
            case RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
                return scheduler.is_ready(request)
            case RequestStatus.WAITING_FOR_REMOTE_KVS:
                return request.request_id in scheduler.finished_recving_kv_req_ids
            case RequestStatus.WAITING_FOR_STREAMING_REQ:
                return False
        return True


def class_of(request: Request) -> PriorityClass:
    return PriorityClass.from_level(request.priority)


def adapter_of(request: Request) -> int | None:
    """The id of its LoRA adapter; None: the model itself."""
    return request.lora_request.lora_int_id if request.lora_request else None
