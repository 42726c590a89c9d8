"""Which cached KV goes first: the blocks of less urgent requests before those of more urgent ones.

Owns what the free queue of vLLM's block pool has to be told: whose blocks come back to it. vLLM itself frees them,
tail first, at once or when the steps in flight are done.

The class of a block is noted when its request gives it up, before vLLM frees it, and stays with the block: a block that
is freed later (`deferred_frees`, a connector that still sends it, another request that holds it) needs no second look.
Groups of layers that do not look back at all tokens (sliding window, chunked, Mamba) give blocks up while their request
runs, and vLLM does not say whose; for those groups the class is noted when the blocks are scheduled. Only the device's
pool is ordered by class; vLLM's host pools keep their own order.

Recent turns of a conversation, or: why the oldest history does not go first. vLLM finds cached KV by a chain of hashes
from the first token on, and stops at the first block that is missing (`FullAttentionManager.find_longest_cache_hit`).
A request has one number, `num_computed_tokens`, for what it need not compute, so it cannot compute its first blocks
anew and keep later ones. Without its oldest block nothing of a conversation is found: to evict old history before
recent turns would lose every hit and free no more memory. What an order of eviction can do is done here. Each turn uses
all of its conversation's blocks again, so the conversations of a class go least recently used first, and inside one the
tail goes first, which leaves a prefix that can still be found. In layers with a sliding window, which need no old
history, vLLM lets go of it by itself. There is therefore no setting for a number of turns to keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from replicas.scheduler.free_queue import ClassFreeQueue
from replicas.scheduler.step_view import class_of
from slo.priority import PriorityClass

if TYPE_CHECKING:
    from replicas.scheduler.scheduler import PriorityScheduler


class EvictionByClass:
    """Puts a `ClassFreeQueue` into the block pool of a scheduler that has just been made, and keeps it informed.

    Where its settings say no, or there is no prefix cache, vLLM's own queue stays and every call does nothing.
    """

    def __init__(self, scheduler: PriorityScheduler) -> None:
        manager = scheduler.kv_cache_manager
        self._scheduler = scheduler
        self._coordinator = manager.coordinator
        self._pool: BlockPool = manager.block_pool
        self._queue: ClassFreeQueue | None = None
        self._early_groups: tuple[int, ...] = ()
        if scheduler.settings.cache.evict_by_class and manager.enable_caching:
            self._queue = ClassFreeQueue(self._pool.free_block_queue, self._pool.num_gpu_blocks)
            self._pool.free_block_queue = self._queue
            self._early_groups = tuple(
                group
                for group, of_group in enumerate(self._coordinator.single_type_managers)
                if type(of_group) is not FullAttentionManager and of_group.block_pool is self._pool
            )

    def note_freed(self, request: Request) -> None:
        """`request` is about to give up all of its blocks."""
        if self._queue is None:
            return
        groups = self._coordinator.get_blocks(request.request_id)
        for of_group, blocks in zip(self._coordinator.single_type_managers, groups, strict=True):
            if of_group.block_pool is self._pool:
                self._queue.note_use((block.block_id for block in blocks), self._class_of(request))

    def note_scheduled(self, output: SchedulerOutput) -> None:
        """The blocks in `output` are new to their requests, which may give them up without another word."""
        if self._queue is None or not self._early_groups:
            return
        cached, requests = output.scheduled_cached_reqs, self._scheduler.requests
        new = [(r.req_id, r.block_ids) for r in output.scheduled_new_reqs]
        for request_id, groups in (*new, *zip(cached.req_ids, cached.new_block_ids, strict=True)):
            for group in self._early_groups if groups else ():
                self._queue.note_use(groups[group], self._class_of(requests[request_id]))

    def note_reset(self) -> None:
        """The prefix cache may have been emptied."""
        if self._queue is not None and not len(self._pool.cached_block_hash_to_block):
            self._queue.note_reset()

    def check_invariants(self) -> None:
        if self._queue is not None:
            self._queue.check_invariants()
            assert self._pool.free_block_queue is self._queue

    def _class_of(self, request: Request) -> PriorityClass:
        """The class that its blocks are kept as: its own, also while it counts as a more urgent one for its turn."""
        return self._scheduler.aging.book.own_class(request.request_id, class_of(request))
