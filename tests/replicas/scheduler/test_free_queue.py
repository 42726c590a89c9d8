"""The free queue by itself, beside a model: a list of free blocks, sorted anew for every question.

Mutations that were tried by hand, each of which some test here fails (`test_eviction.py` has those of the scheduler's
side): note_use takes the last class, not the most urgent one, or passes over P1; remove keeps the block's place, or
forgets its class; popleft_n keeps place or class, takes cached blocks first or the classes from P0 on, or stops after
one queue; append_n puts all blocks where the first belongs, in front, or backwards; prepend_n at the end, or without a
place; note_reset moves nothing, or counts twice; iter_blocks_after starts over, or goes on behind a block in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from replicas.scheduler.free_queue import ClassFreeQueue
from slo.priority import PriorityClass

P0, P1, P2 = PriorityClass
NUM_BLOCKS = 12

CLASSES = st.sampled_from(PriorityClass)
INDEXES = st.integers(0, NUM_BLOCKS - 1)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 8)),
        st.tuples(st.just("give_back"), st.lists(st.tuples(INDEXES, st.booleans()), max_size=8), CLASSES),
        st.tuples(st.just("use_again"), INDEXES),
        st.tuples(st.just("share"), st.lists(INDEXES, min_size=1, max_size=4), CLASSES),
        st.tuples(st.just("reset")),
    ),
    min_size=5,
    max_size=40,
)
"""An index is into the blocks in use, or into the free ones, whichever the operation is about."""


def make_queue(num_blocks: int = NUM_BLOCKS) -> tuple[ClassFreeQueue, list[KVCacheBlock]]:
    blocks = [KVCacheBlock(i) for i in range(num_blocks)]
    return ClassFreeQueue(FreeKVCacheBlockQueue(blocks), num_blocks), blocks


def give_back(queue: ClassFreeQueue, blocks: list[KVCacheBlock], priority: PriorityClass) -> None:
    queue.note_use((block.block_id for block in blocks), priority)
    queue.append_n(blocks)


def ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


@dataclass
class Model:
    """Free blocks by rank (0: nothing to find again, then P2 to P0) and place in it; smaller goes first."""

    free: dict[int, tuple[int, int]] = field(default_factory=lambda: {i: (0, i) for i in range(NUM_BLOCKS)})
    users: dict[int, set[PriorityClass]] = field(default_factory=lambda: {i: set() for i in range(NUM_BLOCKS)})
    clock: int = NUM_BLOCKS

    def order(self) -> list[int]:
        return sorted(self.free, key=self.free.__getitem__)

    def take(self, count: int) -> list[int]:
        taken = self.order()[:count]
        for block in taken:
            del self.free[block]
            self.users[block] = set()
        return taken

    def put(self, block: int, is_cached: bool) -> None:
        self.clock += 1
        if is_cached:
            best = min((c.level for c in self.users[block]), default=P2.level)
            self.free[block] = (1 + P2.level - best, self.clock)
        else:
            self.free[block] = (0, -self.clock)


@dataclass
class Pair:
    """The queue and the model: each operation is done to both."""

    queue: ClassFreeQueue
    blocks: list[KVCacheBlock]
    model: Model = field(default_factory=Model)

    def take(self, count: int) -> None:
        count = min(count, len(self.model.free))
        assert ids(self.queue.popleft_n(count)) == self.model.take(count)

    def give_back(self, wanted: list[tuple[int, bool]], priority: PriorityClass) -> None:
        """As the pool does it: those that are not cached first, all at the front."""
        used = {block: is_cached for index, is_cached in wanted for block in self.in_use(index)}
        plain, cached = ([i for i, c in used.items() if c is kind] for kind in (False, True))
        self.note_use(list(used), priority)
        self.queue.prepend_n([self.blocks[i] for i in plain])
        self.queue.append_n([self.blocks[i] for i in cached])
        for block in (*reversed(plain), *cached):
            self.model.put(block, used[block])

    def use_again(self, index: int) -> None:
        if free := self.model.order():
            block = free[index % len(free)]
            self.queue.remove(self.blocks[block])
            del self.model.free[block]

    def share(self, wanted: list[int], priority: PriorityClass) -> None:
        self.note_use([block for index in wanted for block in self.in_use(index)], priority)

    def note_use(self, used: list[int], priority: PriorityClass) -> None:
        self.queue.note_use(used, priority)
        for block in used:
            self.model.users[block].add(priority)

    def in_use(self, index: int) -> list[int]:
        """The block, or none where none is in use."""
        used = [block for block in range(NUM_BLOCKS) if block not in self.model.free]
        return used[index % len(used) :][:1] if used else []

    def reset(self) -> None:
        self.queue.note_reset()
        cached = [block for block in self.model.order() if self.model.free[block][0]]
        for block in reversed(cached):
            self.model.put(block, is_cached=False)

    def check(self) -> None:
        order = self.model.order()
        self.queue.check_invariants()
        assert self.queue.num_free_blocks == len(order)
        assert ids(self.queue.get_all_free_blocks()) == ids(list(self.queue.iter_blocks_after(None))) == order
        for index, block in enumerate(order):
            assert ids(list(self.queue.iter_blocks_after(self.blocks[block]))) == order[index + 1 :]


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(operations=OPERATIONS)
def test_free_queue_evicts_as_the_model_whatever_is_done(operations) -> None:
    pair = Pair(*make_queue())
    pair.take(NUM_BLOCKS)
    for name, *arguments in operations:
        getattr(pair, name)(*arguments)
        pair.check()


def test_free_queue_starts_in_the_order_of_vllms() -> None:
    queue, _ = make_queue(4)
    assert [queue.popleft().block_id for _ in range(4)] == [0, 1, 2, 3]


def test_free_queue_evicts_batch_before_urgent_and_uncached_before_all() -> None:
    queue, _ = make_queue(4)
    a, b, c, d = queue.popleft_n(4)
    give_back(queue, [a], P0)
    give_back(queue, [b], P1)
    give_back(queue, [c], P2)
    queue.prepend_n([d])
    assert queue.popleft_n(4) == [d, c, b, a]


@pytest.mark.parametrize("last_user", [P1, P2])
def test_free_queue_keeps_the_most_urgent_class_that_used_a_block(last_user) -> None:
    queue, _ = make_queue(3)
    shared, urgent, standard = queue.popleft_n(3)
    queue.note_use([shared.block_id], P0)
    give_back(queue, [shared], last_user)
    give_back(queue, [urgent], P0)
    give_back(queue, [standard], P1)
    assert queue.popleft_n(3) == [standard, shared, urgent]


def test_free_queue_keeps_the_class_of_a_block_that_is_used_again() -> None:
    queue, _ = make_queue(2)
    urgent, standard = queue.popleft_n(2)
    give_back(queue, [urgent], P0)
    give_back(queue, [standard], P1)
    queue.remove(urgent)
    give_back(queue, [urgent], P2)
    assert queue.popleft_n(2) == [standard, urgent]


def test_free_queue_forgets_the_class_of_a_block_that_is_handed_out() -> None:
    queue, _ = make_queue(2)
    first, second = queue.popleft_n(2)
    give_back(queue, [first], P0)
    assert queue.popleft() is first
    give_back(queue, [second], P1)
    give_back(queue, [first], P2)
    assert queue.popleft_n(2) == [first, second]


def test_free_queue_values_blocks_alike_when_the_cache_was_reset() -> None:
    queue, _ = make_queue(3)
    a, b, c = queue.popleft_n(3)
    give_back(queue, [a, b], P0)
    queue.note_reset()
    give_back(queue, [c], P2)
    assert queue.popleft_n(3) == [a, b, c]
    queue.check_invariants()


def test_free_queue_refuses_as_vllms_when_nothing_is_free() -> None:
    queue, _ = make_queue(1)
    block = queue.popleft()
    assert queue.popleft_n(0) == []
    with pytest.raises(ValueError, match="No free blocks"):
        queue.popleft()
    with pytest.raises(AssertionError, match="2 blocks asked for, 0 free"):
        queue.popleft_n(2)
    with pytest.raises(RuntimeError, match="not free"):
        queue.remove(block)
    queue.append(block)
    assert queue.popleft() is block


def test_free_queue_lists_nothing_behind_a_block_in_use() -> None:
    queue, _ = make_queue(2)
    used, cached = queue.popleft_n(2)
    queue.append(cached)
    assert list(queue.iter_blocks_after(None)) == [cached]
    assert list(queue.iter_blocks_after(used)) == []
