"""Free KV blocks in eviction order: those that hold nothing to find again, then cached ones from P2 to P0.

Stands where vLLM's block pool keeps its `FreeKVCacheBlockQueue`, and is made of such queues: one for blocks that hold
nothing to find again, one a class for the cached ones, least recently used first inside each. It owns the order of the
free blocks and the class of every block. Whose class a block has is told by `note_use`; it knows no requests, hashes or
reference counts, and frees and evicts nothing: the pool does, as before.

A block has the most urgent class of those that used it since it was last handed out. What uses a block uses the blocks
before it in the hash chain too, so none of those has a lesser class or was used earlier, and no block is evicted while
one that can be found only through it stays. (Two blocks with the same hash, which vLLM does not merge, can differ.)

The order is strict: as long as a block of a lesser class is free no other goes, however long it has lain unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from slo.priority import PriorityClass

_LEAST_URGENT = list(PriorityClass)[-1]


class ClassFreeQueue:
    """The interface of `FreeKVCacheBlockQueue`, as the block pool and vLLM's connectors use it, and `note_use`.

    Called by the engine's core, in its one thread. Every call costs what vLLM's own queue costs, and O(1) a block more.
    """

    def __init__(self, free: FreeKVCacheBlockQueue, num_blocks: int) -> None:
        """Takes over `free`, the queue of a pool of `num_blocks` blocks that has cached none yet."""
        self.num_free_blocks = free.num_free_blocks
        self._unhashed = free
        self._cached = {priority.level: FreeKVCacheBlockQueue([]) for priority in PriorityClass}
        self._in_order = [free, *(self._cached[priority.level] for priority in reversed(PriorityClass))]
        self._levels = bytearray([_LEAST_URGENT.level]) * num_blocks
        """The level of each block's class, by block id."""
        self._places: list[FreeKVCacheBlockQueue | None] = [None] * num_blocks
        """The queue that each block is in, by block id; None while it is in use."""
        for block in free.get_all_free_blocks():
            self._places[block.block_id] = free

    def note_use(self, block_ids: Iterable[int], priority: PriorityClass) -> None:
        """A request of class `priority` has used these blocks, which are not free: the most urgent class counts."""
        if priority is _LEAST_URGENT:
            return
        level, levels = priority.level, self._levels
        for block_id in block_ids:
            levels[block_id] = min(level, levels[block_id])

    def note_reset(self) -> None:
        """No free block is cached any more: none of them is worth more than another."""
        for queue in self._cached.values():
            if blocks := queue.popleft_n(queue.num_free_blocks):
                self.num_free_blocks -= len(blocks)
                self.prepend_n(blocks)

    def popleft(self) -> KVCacheBlock:
        """The block to evict first. ValueError when none is free."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """The `n` blocks to evict first, of `num_free_blocks` at most. Their class is forgotten."""
        assert n <= self.num_free_blocks, f"{n} blocks asked for, {self.num_free_blocks} free"
        taken: list[KVCacheBlock] = []
        for queue in self._in_order:
            if len(taken) == n:
                break
            taken += queue.popleft_n(min(n - len(taken), queue.num_free_blocks))
        for block in taken:
            self._places[block.block_id] = None
            self._levels[block.block_id] = _LEAST_URGENT.level
        self.num_free_blocks -= n
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """A free block is used again; it keeps its class. RuntimeError when it is not free."""
        place = self._places[block.block_id]
        if place is None:
            raise RuntimeError(f"remove() called on a block that is not free: {block}")
        place.remove(block)
        self._places[block.block_id] = None
        self.num_free_blocks -= 1

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """The pool gives back blocks that hold nothing to find again: they go before all others, in this order."""
        self._unhashed.prepend_n(blocks)
        for block in blocks:
            self._places[block.block_id] = self._unhashed
        self.num_free_blocks += len(blocks)

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """The pool gives back blocks worth keeping: each goes last in its class, in this order."""
        for level, run in groupby(blocks, key=self._level_of):
            queue, of_level = self._cached[level], list(run)
            queue.append_n(of_level)
            for block in of_level:
                self._places[block.block_id] = queue
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """In eviction order."""
        return [block for queue in self._in_order for block in queue.get_all_free_blocks()]

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """In eviction order, behind `cursor`; none behind one that is not free."""
        queues = self._in_order
        if cursor is not None:
            place = self._places[cursor.block_id]
            if place is None:
                return
            yield from place.iter_blocks_after(cursor)
            queues = queues[queues.index(place) + 1 :]
        for queue in queues:
            yield from queue.iter_blocks_after(None)

    def check_invariants(self) -> None:
        """For tests: every free block is in one queue, which is that of its class, and they are counted right."""
        listed = [(block, queue) for queue in self._in_order for block in queue.get_all_free_blocks()]
        ids = [block.block_id for block, _ in listed]
        assert len(ids) == len(set(ids)), f"a block is in two places: {sorted(ids)}"
        assert self.num_free_blocks == len(ids), f"{len(ids)} blocks listed, {self.num_free_blocks} counted"
        assert all(queue.num_free_blocks == len(queue.get_all_free_blocks()) for queue in self._in_order)
        assert all(self._places[block.block_id] is queue for block, queue in listed)
        assert sum(place is not None for place in self._places) == len(ids), "a block in use is counted as free"
        assert all(block.ref_cnt == 0 and not block.is_null for block, _ in listed), "a block in use is in a queue"
        cached = [(block, queue) for block, queue in listed if queue is not self._unhashed]
        assert all(self._cached[self._levels[block.block_id]] is queue for block, queue in cached)

    def _level_of(self, block: KVCacheBlock) -> int:
        return self._levels[block.block_id]
