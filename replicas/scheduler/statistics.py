"""What the scheduler tells about itself, for the replica to pass on: an `EngineSnapshot` in vLLM's statistics.

Owns what is counted for that alone; all else is read when a snapshot is due. Each request and each step is noted in
O(1), and a snapshot costs O(requests) twice a second at most. Totals ride as totals, so that one that is lost loses
nothing. Sends nothing unless the engine's replica asked for it, see `replicas.snapshot_codec`.
"""

from __future__ import annotations

from enum import Enum, auto
from itertools import chain
from typing import TYPE_CHECKING

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request, RequestStatus

from replicas.scheduler.cache_reuse import CacheReuse
from replicas.scheduler.step_view import class_of
from replicas.scheduler.swap_use import SwapUseReader
from replicas.snapshot_codec import is_asked_for_statistics, put
from slo.histogram import BATCH_BOUNDS, Histogram
from slo.priority import PriorityClass
from slo.snapshots import ClassLoad, EngineSnapshot, KVUse, PreemptionKind

if TYPE_CHECKING:
    from replicas.scheduler.scheduler import PriorityScheduler

PERIOD_S = 0.5
"""Snapshots are this far apart, at least: the controller's period is a few seconds."""
TOKEN_USE_WEIGHT = 0.1
"""Of the latest step in the moving average of the token budget used: about ten steps count."""
KNOWN_BLOCKS_RATIO = 4
"""Blocks remembered as once cached, for each block of the device: a prompt that comes again after four times the
cache's content has passed through it is a first-time prompt."""

_RUNNING, _WAITING = RequestStatus.RUNNING, RequestStatus.WAITING


class _State(Enum):
    RUNNING = auto()
    WAITING = auto()
    PAUSED = auto()
    SWAPPED = auto()


class SchedulerStatistics:
    """One scheduler's. Called by the engine's core, in its one thread; times are of the scheduler's clock."""

    def __init__(self, scheduler: PriorityScheduler) -> None:
        self._scheduler = scheduler
        self._is_on = scheduler.log_stats and is_asked_for_statistics(scheduler.vllm_config.additional_config)
        self._is_cache_on = scheduler.cache_config.enable_prefix_caching
        self._num_blocks = scheduler.kv_cache_config.num_blocks - 1  # vLLM keeps one that nobody ever holds.
        coordinator = scheduler.kv_cache_manager.coordinator
        self._block_sizes = tuple(m.block_size for m in coordinator.single_type_managers)
        self._get_blocks = coordinator.get_blocks
        self._arrivals: dict[str, tuple[float, PriorityClass]] = {}
        self._queue_waits = {c: Histogram() for c in PriorityClass}
        self._batch_sizes = Histogram(BATCH_BOUNDS)
        self._num_steps = 0
        self._num_step_tokens = 0
        self._num_budget_tokens = 0
        self._token_use_ratio = 0.0
        self._told_s: float | None = None
        self._told_when_idle: tuple[int, int] | None = None
        self._swap_use = SwapUseReader(scheduler)
        self.reuse = CacheReuse(scheduler.hash_block_size, KNOWN_BLOCKS_RATIO * self._num_blocks)

    def note_arrival(self, request: Request) -> None:
        """A request has come, and has its class."""
        if self._is_on:
            self._arrivals[request.request_id] = (self._scheduler.pacing.clock(), class_of(request))

    def note_step(self, output: SchedulerOutput) -> None:
        """A step was scheduled."""
        if not self._is_on or not output.total_num_scheduled_tokens:
            return
        num_tokens, budget = output.total_num_scheduled_tokens, self._scheduler.max_num_scheduled_tokens
        self._num_steps += 1
        self._num_step_tokens += num_tokens
        self._num_budget_tokens += budget
        self._token_use_ratio += (num_tokens / budget - self._token_use_ratio) * TOKEN_USE_WEIGHT
        self._batch_sizes.observe(len(output.num_scheduled_tokens))
        for new in output.scheduled_new_reqs:
            # The V2 runner is told of resumed requests as of new ones: they have been noted before.
            if (arrival := self._arrivals.pop(new.req_id, None)) is not None:
                arrived_s, priority = arrival
                self._queue_waits[priority].observe(self._scheduler.pacing.clock() - arrived_s)
                if self._is_cache_on:
                    self.reuse.note_first_step(self._scheduler.requests[new.req_id], new.num_computed_tokens)

    def add_to(self, stats: SchedulerStats | None) -> SchedulerStats | None:
        """vLLM is about to send `stats`: adds a snapshot when one is due. Returns `stats`."""
        if stats is None or not self._is_on:
            return stats
        now_s = self._scheduler.pacing.clock()
        if self._is_due(now_s):
            self._told_s = now_s
            put(self._snapshot(), stats)
        return stats

    def _is_due(self, now_s: float) -> bool:
        """Now and then; and when the engine goes idle, as nothing more is sent then."""
        if self._is_idle:
            state = (self._num_steps, self._num_used_blocks)
            is_told, self._told_when_idle = state == self._told_when_idle, state
            return not is_told
        is_due = self._told_s is None or now_s - self._told_s >= PERIOD_S
        if is_due:
            self._told_when_idle = None
        return is_due

    @property
    def _is_idle(self) -> bool:
        return self._scheduler.get_request_counts() == (0, 0)

    @property
    def _num_used_blocks(self) -> int:
        return self._num_blocks - self._scheduler.kv_blocks.num_free

    def _snapshot(self) -> EngineSnapshot:
        scheduler = self._scheduler
        self.reuse.sweep(scheduler.requests)
        self._forget_arrivals()
        counts = scheduler.preemption_counts
        return EngineSnapshot(
            source_id=scheduler.vllm_config.instance_id,
            age_s=0.0,
            classes=self._class_loads(),
            max_num_seqs=scheduler.max_num_running_reqs,
            kv=self._kv_use(),
            batch_sizes=self._batch_sizes.counts(),
            num_step_tokens=self._num_step_tokens,
            num_budget_tokens=self._num_budget_tokens,
            num_lost_tokens=counts.num_recomputed_tokens,
            num_promotions=counts.num_promotions,
            saturation_ratio=self._saturation_ratio(),
            swap=self._swap_use.read(),
        )

    def _forget_arrivals(self) -> None:
        """Of those that ended before they ran. Looked for only where there must be some."""
        if len(self._arrivals) > self._scheduler.get_request_counts()[1]:
            self._arrivals = {i: arrival for i, arrival in self._arrivals.items() if i in self._scheduler.requests}

    def _class_loads(self) -> dict[PriorityClass, ClassLoad]:
        preempted = self._scheduler.preemption_counts.num_by_kind
        numbers, unread = self._count_states(), self._count_unread()
        return {
            priority: ClassLoad(
                num_running=numbers[_State.RUNNING][priority.level],
                num_waiting=numbers[_State.WAITING][priority.level],
                num_paused=numbers[_State.PAUSED][priority.level],
                num_swapped=numbers[_State.SWAPPED][priority.level],
                queue_wait=self._queue_waits[priority].counts(),
                num_preempted={k: preempted[k, priority] for k in PreemptionKind if (k, priority) in preempted},
                num_unread_tokens=unread[priority.level],
            )
            for priority in PriorityClass
        }

    def _count_states(self) -> dict[_State, list[int]]:
        """Requests by state and own class: one that was lifted for having waited too long is what its client sent."""
        scheduler, book = self._scheduler, self._scheduler.aging.book
        numbers = {state: [0] * len(PriorityClass) for state in _State}
        running, waiting = numbers[_State.RUNNING], numbers[_State.WAITING]
        for request in scheduler.requests.values():
            status, level = request.status, request.priority
            if status is _RUNNING:
                running[level] += 1
            elif status is _WAITING:
                waiting[level] += 1
            elif (state := self._state_of(request)) is not None:
                numbers[state][level] += 1
        for request_id in book.lifted_ids:
            request = scheduler.requests[request_id]
            if (state := self._state_of(request)) is not None:
                numbers[state][request.priority] -= 1
                numbers[state][book.own_class(request_id, class_of(request)).level] += 1
        return numbers

    def _count_unread(self) -> list[int]:
        """Prompt tokens to be computed yet, by the class that orders them now: a lifted request goes ahead as such."""
        unread = [0] * len(PriorityClass)
        for request in self._scheduler.requests.values():
            if (num_left := request.num_prompt_tokens - request.num_computed_tokens) > 0:
                unread[request.priority] += num_left
        return unread

    def _state_of(self, request: Request) -> _State | None:
        """None: it waits for its client, or has ended and is about to be forgotten."""
        scheduler = self._scheduler
        match request.status:
            case RequestStatus.RUNNING:
                return _State.RUNNING
            case RequestStatus.PREEMPTED if request in scheduler.kv_holding_waiting:
                return _State.PAUSED
            case RequestStatus.PREEMPTED if scheduler.swapping.is_swapped(request):
                return _State.SWAPPED
            case RequestStatus.WAITING_FOR_REMOTE_KVS if scheduler.swapping.is_on:  # It is on its way back.
                return _State.SWAPPED
            case RequestStatus.WAITING_FOR_STREAMING_REQ:
                return None
        return None if request.is_finished() else _State.WAITING

    def _kv_use(self) -> KVUse:
        """Only the last blocks of a request have empty slots, and those are its own: shared blocks are counted once."""
        scheduler = self._scheduler
        num_used_blocks = self._num_used_blocks
        num_slots = num_used_blocks * scheduler.block_size
        num_empty = sum(map(self._num_empty_slots, chain(scheduler.running, scheduler.kv_holding_waiting)))
        return KVUse(
            num_blocks=self._num_blocks,
            num_used_blocks=num_used_blocks,
            num_allocated_slots=num_slots,
            num_filled_slots=max(0, num_slots - num_empty),
            num_reusable_blocks=self.reuse.num_reusable_blocks,
            num_hit_blocks=self.reuse.num_hit_blocks,
        )

    def _num_empty_slots(self, request: Request) -> int:
        num_empty = 0
        for block_size, blocks in zip(self._block_sizes, self._get_blocks(request.request_id), strict=True):
            num_empty += max(0, block_size * len(blocks) - request.num_computed_tokens)
        return num_empty

    def _saturation_ratio(self) -> float:
        if self._is_idle:
            self._token_use_ratio = 0.0  # No step is recent.
        slots_ratio = len(self._scheduler.running) / self._scheduler.max_num_running_reqs
        blocks_ratio = self._num_used_blocks / self._num_blocks
        return max(slots_ratio, blocks_ratio, self._token_use_ratio)

    def check_invariants(self) -> None:
        """For tests, between steps."""
        self.reuse.check_invariants()
        assert 0 <= self._num_step_tokens <= self._num_budget_tokens
        assert self._batch_sizes.counts().count == self._num_steps
        assert 0.0 <= self._token_use_ratio <= 1.0
