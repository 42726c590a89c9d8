"""Whose cached KV goes first in a model with several groups of layers, each with blocks of its own.

The harness' worker knows one group only, so the one here computes nothing. `test_eviction.py` lists the mutations.
"""

from __future__ import annotations

import pytest
import torch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, get_block_hash, get_group_id
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput

from replicas.scheduler.eviction import EvictionByClass
from slo.priority import PriorityClass
from tests.replicas.scheduler.harness import Driver, EngineShape, build, build_scheduler

P0, P1, P2 = PriorityClass
BLOCK_SIZE = 16
NUM_BLOCKS = 61
FULL, SLIDING = 0, 1


SIZES = {"block_size": BLOCK_SIZE, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float16}
SLIDING_SPEC = SlidingWindowSpec(**SIZES, sliding_window=2 * BLOCK_SIZE)


@pytest.fixture
def second_spec() -> KVCacheSpec:
    return SLIDING_SPEC


@pytest.fixture
def driver(monkeypatch, second_spec) -> Driver:
    """Of an engine whose model has layers that look back at all tokens, and layers that look back at two blocks."""
    groups = [
        KVCacheGroupSpec(["full"], FullAttentionSpec(**SIZES)),
        KVCacheGroupSpec(["sliding"], second_spec),
    ]
    kv_config = KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_groups=groups, kv_cache_tensors=[])
    monkeypatch.setattr(build, "make_kv_config", lambda _: kv_config)
    return Driver(build_scheduler(EngineShape(num_blocks=NUM_BLOCKS, max_num_seqs=2, token_budget=64)))


def add(driver: Driver, priority: PriorityClass) -> None:
    """Named after its class; ten blocks of prompt."""
    prompt = [3 + (priority.level * 31 + i * 7) % 97 for i in range(10 * BLOCK_SIZE)]
    driver.add(priority.name, priority, prompt, max_tokens=50)


def step(scheduler: Scheduler) -> None:
    output = scheduler.schedule()
    scheduler.check_invariants()
    ids = list(output.num_scheduled_tokens)
    sampled = [[] if scheduler.requests[i].is_prefill_chunk else [7] for i in ids]
    tokens = ModelRunnerOutput(ids, {request_id: n for n, request_id in enumerate(ids)}, sampled_token_ids=sampled)
    scheduler.update_from_output(output, tokens)


def eviction_order(driver: Driver, group: int) -> list[str]:
    """The owner of each free block of `group` that is cached, first to go first."""
    owners = {h: name for name, request in driver.requests.items() for h in request.block_hashes}
    free = driver.scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
    hashes = [block.block_hash for block in free if block.block_hash]
    return [owners[get_block_hash(h)] for h in hashes if get_group_id(h) == group]


@pytest.mark.parametrize("second_spec", [SLIDING_SPEC, FullAttentionSpec(**SIZES)], ids=["sliding", "full"])
def test_eviction_has_the_right_class_in_every_group(driver) -> None:
    add(driver, P0)
    add(driver, P2)
    for _ in range(8):
        step(driver.scheduler)
    driver.abort("P0")
    driver.abort("P2")
    assert eviction_order(driver, FULL) == ["P2"] * 10 + ["P0"] * 10
    in_sliding = eviction_order(driver, SLIDING)
    assert in_sliding == sorted(in_sliding, reverse=True)
    assert set(in_sliding) == {"P0", "P2"}
    assert driver.num_free_blocks == driver.num_all_blocks


def test_eviction_has_the_right_class_when_layers_let_go_of_blocks_early(driver) -> None:
    """Both requests run: nobody has given up its blocks by ending."""
    add(driver, P0)
    for _ in range(4):
        step(driver.scheduler)
    add(driver, P2)
    for _ in range(5):
        step(driver.scheduler)
    early = eviction_order(driver, SLIDING)
    assert len(driver.scheduler.running) == 2
    assert eviction_order(driver, FULL) == []
    assert early == ["P2"] * early.count("P2") + ["P0"] * early.count("P0")
    assert set(early) == {"P0", "P2"}


def test_eviction_orders_only_the_pool_of_the_device(driver) -> None:
    """The sliding group has a pool of its own, in which P0 gets blocks with the ids of P2's in the device's pool."""
    scheduler = driver.scheduler
    manager, other = scheduler.kv_cache_manager, BlockPool(NUM_BLOCKS, True, BLOCK_SIZE)
    sliding = manager.coordinator.single_type_managers[SLIDING]
    sliding.block_pool, sliding._null_block = other, other.null_block
    manager.block_pool.free_block_queue = FreeKVCacheBlockQueue(manager.block_pool.blocks[1:])
    scheduler.eviction = EvictionByClass(scheduler)
    kept_away = other.get_new_blocks(12)
    add(driver, P2)
    for _ in range(4):
        step(scheduler)
    other.free_blocks(kept_away)
    add(driver, P0)
    for _ in range(4):
        step(scheduler)
    in_other = {i for i in manager.get_block_ids("P0")[SLIDING] if i}
    assert in_other <= set(manager.get_block_ids("P2")[FULL])
    driver.abort("P0")
    driver.abort("P2")
    assert eviction_order(driver, FULL) == ["P2"] * 10 + ["P0"] * 10
    assert type(other.free_block_queue) is FreeKVCacheBlockQueue
