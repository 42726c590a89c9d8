"""Whose cached KV goes first, with the real scheduler. `check_invariants` of the free queue runs in every step.

Mutations that were tried by hand, each of which some test here or in `test_eviction_groups.py` fails: the class is not
noted, noted after the free, for the first group only, for blocks of other pools, always P0, or the one that a request
counts as when it gives its KV up or ends; early groups are not looked for, looked for in other pools, or noted for new
or for known requests only; the setting or the lack of a prefix cache is ignored; a reset is ignored, or taken for one
that emptied the cache when vLLM refused it.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, KVCacheEvent
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, get_block_hash, maybe_convert_block_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from replicas.scheduler import PriorityScheduler
from slo.priority import PriorityClass
from slo.settings.scheduling import CacheSettings, SchedulerSettings
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler

P0, P1, P2 = PriorityClass
BLOCK_SIZE = 16
LRU = SchedulerSettings(cache=CacheSettings(evict_by_class=False))


def make_driver(num_blocks: int = 41, scheduler_settings=None, scheduler_cls=PriorityScheduler, **shape) -> Driver:
    engine = EngineShape(**{"num_blocks": num_blocks, "max_num_seqs": 2, **shape})
    return Driver(build_scheduler(engine, scheduler_settings, scheduler_cls), depth=2 if engine.is_async else 1)


def prompt_of(name: str, num_blocks: int) -> list[int]:
    """A prompt of so many blocks that shares no block with that of another name."""
    return [3 + (sum(map(ord, name)) * 13 + i * 7) % 97 for i in range(num_blocks * BLOCK_SIZE)]


def serve(driver: Driver, name: str, priority: PriorityClass, prompt: list[int]) -> Request:
    """One request from arrival to end, with nothing beside it."""
    request = driver.add(name, priority, prompt, max_tokens=2)
    driver.run_to_end()
    return request


def serve_batch(driver: Driver, count: int, num_blocks: int = 8) -> list[Request]:
    return [serve(driver, f"batch-{i}", P2, prompt_of(f"{i}", num_blocks)) for i in range(count)]


def num_cached(driver: Driver, request: Request) -> int:
    """How many blocks of the request's prompt can still be found, from the first on."""
    return _found(driver, request).index(False)


def _found(driver: Driver, request: Request) -> list[bool]:
    pool = driver.scheduler.kv_cache_manager.block_pool
    return [pool.get_cached_block(block_hash, [0]) is not None for block_hash in request.block_hashes] + [False]


def eviction_order(driver: Driver) -> list[str]:
    """The owner of each free block that is cached, first to go first."""
    owners = {h: name for name, request in driver.requests.items() for h in request.block_hashes}
    free = driver.scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
    return [owners[get_block_hash(block.block_hash)] for block in free if block.block_hash]


@pytest.mark.parametrize(
    ("scheduler_cls", "scheduler_settings", "num_hit_tokens"),
    [(PriorityScheduler, None, 160), (PriorityScheduler, LRU, 0), (Scheduler, None, 0)],
    ids=["by class", "switched off", "vLLM's own"],
)
def test_eviction_keeps_an_urgent_conversation_under_batch_traffic_vllm_47802(
    scheduler_cls, scheduler_settings, num_hit_tokens
) -> None:
    """120 blocks of batch prompts go through a cache of 40, between two turns of a conversation."""
    driver = make_driver(scheduler_settings=scheduler_settings, scheduler_cls=scheduler_cls)
    first_turn = prompt_of("conversation", 10)
    serve(driver, "turn-1", P0, first_turn)
    serve_batch(driver, 15)
    driver.add("turn-2", P0, first_turn + driver.outputs["turn-1"] + prompt_of("more", 2))
    assert driver.step().output.scheduled_new_reqs[0].num_computed_tokens == num_hit_tokens
    driver.run_to_end()
    assert driver.num_free_blocks == driver.num_all_blocks


def test_eviction_takes_batch_then_standard_then_urgent_prefixes() -> None:
    """Each request leaves one block that is not full, hence not cached. Cached of each class: see the counts."""
    driver = make_driver(num_blocks=37)
    requests = [serve(driver, c.name, c, prompt_of(c.name, 10)) for c in PriorityClass]
    for num_blocks, counts in [(12, [10, 10, 3]), (5, [10, 8, 0]), (12, [6, 0, 0])]:
        serve(driver, f"pressure-{counts}", P0, prompt_of(f"pressure-{counts}", num_blocks))
        assert [num_cached(driver, request) for request in requests] == counts


def test_eviction_takes_the_least_recently_used_first_inside_a_class() -> None:
    driver = make_driver()
    older, newer = (serve(driver, name, P2, prompt_of(name, 10)) for name in ("older", "newer"))
    serve(driver, "older-again", P2, list(older.prompt_token_ids) + prompt_of("x", 1))
    serve(driver, "pressure", P2, prompt_of("pressure", 26))
    assert num_cached(driver, older) == 10
    assert num_cached(driver, newer) < 10


def test_eviction_takes_the_tail_of_a_prefix_first() -> None:
    driver = make_driver()
    request = serve(driver, "a", P0, prompt_of("a", 20))
    serve(driver, "b", P0, prompt_of("b", 30))
    assert 0 < num_cached(driver, request) < 20
    assert sum(_found(driver, request)) == num_cached(driver, request)


@pytest.mark.parametrize("urgent_ends_first", [True, False])
def test_eviction_keeps_a_shared_prefix_as_the_most_urgent_user_s(urgent_ends_first) -> None:
    driver = make_driver()
    shared = prompt_of("shared", 8)
    urgent = driver.add("urgent", P0, [*shared, 7], max_tokens=3 if urgent_ends_first else 10)
    driver.step()
    driver.add("batch", P2, [*shared, 8], max_tokens=10 if urgent_ends_first else 3)
    assert driver.step().output.scheduled_new_reqs[0].num_computed_tokens == 8 * BLOCK_SIZE
    driver.run_to_end()
    serve_batch(driver, 10)
    assert num_cached(driver, urgent) == 8


@pytest.mark.parametrize("order", [(P0, P2), (P2, P0)])
def test_eviction_keeps_a_prefix_used_again_by_another_class(order) -> None:
    driver = make_driver()
    prompt = prompt_of("prefix", 8)
    for i, priority in enumerate(order):
        serve(driver, f"user-{i}", priority, [*prompt, i])
    serve_batch(driver, 10)
    assert num_cached(driver, driver.requests["user-0"]) == 8


def test_eviction_forgets_the_class_when_a_block_is_computed_anew() -> None:
    driver = make_driver()
    serve(driver, "urgent", P0, prompt_of("urgent", 38))
    batch = serve(driver, "batch", P2, prompt_of("batch", 36))
    standard = serve(driver, "standard", P1, prompt_of("standard", 30))
    assert num_cached(driver, batch) < 10
    serve_batch(driver, 3, num_blocks=5)
    assert num_cached(driver, standard) == 30


def test_eviction_has_the_right_class_when_blocks_are_freed_after_the_steps_in_flight() -> None:
    """vLLM frees the blocks of both together, the urgent ones first, when it does not know the requests any more."""
    driver = make_driver()
    scheduler = driver.scheduler
    scheduler.defer_block_free = True
    requests = [driver.add(c.name, c, prompt_of(c.name, 10), max_tokens=50) for c in (P0, P2)]
    driver.steps(2)
    scheduler.schedule()
    for request in requests:
        driver.abort(request.request_id)
    assert len(scheduler.deferred_frees) == 2
    assert not eviction_order(driver)
    scheduler.processed_step_seq = scheduler.sched_step_seq
    scheduler._drain_deferred_frees()
    assert eviction_order(driver) == ["P2"] * 10 + ["P0"] * 10
    scheduler.check_invariants()


def test_eviction_has_the_right_class_when_a_request_was_preempted() -> None:
    driver = make_driver()
    standard, _ = (driver.add(c.name, c, prompt_of(c.name, 10), max_tokens=50) for c in (P1, P2))
    driver.steps(2)
    driver.scheduler._give_up_kv(standard)
    driver.abort("P2")
    assert eviction_order(driver) == ["P2"] * 10 + ["P1"] * 10
    driver.run_to_end()


def test_eviction_has_the_right_class_when_a_paused_request_gave_up_its_kv() -> None:
    driver = make_driver(max_num_seqs=1)
    standard = driver.add("P1", P1, prompt_of("P1", 10), max_tokens=50)
    driver.steps(2)
    driver.add("P0", P0, prompt_of("P0", 10), max_tokens=50)
    driver.step()
    driver.abort("P0")
    driver.scheduler._reclaim(standard)
    assert eviction_order(driver) == ["P1"] * 10 + ["P0"] * 10
    driver.run_to_end()


@pytest.mark.parametrize("ends", [True, False])
def test_eviction_has_the_right_class_when_a_request_counts_as_a_more_urgent_one(ends) -> None:
    """It has waited so long that it is next in turn; its blocks are batch work's all the same."""
    driver = make_driver(max_num_seqs=1)
    batch = driver.add("P2", P2, prompt_of("P2", 10), max_tokens=50)
    driver.steps(2)
    driver.add("P1", P1, prompt_of("P1", 10), max_tokens=50)
    driver.step()
    lift(driver)
    driver.step()
    assert batch.priority == P1.level
    driver.abort("P1")
    if ends:
        driver.abort("P2")
    else:
        driver.scheduler._reclaim(batch)
    assert eviction_order(driver) == ["P2"] * 10 + ["P1"] * 10


def lift(driver: Driver) -> None:
    """All who wait have waited as long as it takes to count as one class more."""
    now_s = driver.scheduler.aging.clock()
    driver.scheduler.aging.clock = lambda: now_s + driver.scheduler.settings.fairness.aging_s.p2


def test_eviction_starts_over_when_the_prefix_cache_is_reset() -> None:
    driver = make_driver()
    serve(driver, "urgent", P0, prompt_of("urgent", 30))
    assert driver.scheduler.reset_prefix_cache()
    batch = serve(driver, "batch", P2, prompt_of("batch", 10))
    serve(driver, "other", P2, prompt_of("other", 20))
    assert num_cached(driver, batch) == 10


def test_eviction_keeps_the_classes_when_a_reset_was_refused() -> None:
    driver = make_driver()
    urgent = serve(driver, "urgent", P0, prompt_of("urgent", 10))
    driver.add("batch", P2, 20)
    driver.step()
    assert not driver.scheduler.reset_prefix_cache()
    serve_batch(driver, 10)
    assert num_cached(driver, urgent) == 10


def test_eviction_is_told_to_those_who_follow_kv_events_in_its_order() -> None:
    driver = make_driver()
    pool = driver.scheduler.kv_cache_manager.block_pool
    pool.enable_kv_cache_events = True
    urgent = serve(driver, "urgent", P0, prompt_of("urgent", 10))
    batch = serve(driver, "batch", P2, prompt_of("batch", 10))
    events: list[KVCacheEvent] = []
    driver.check = lambda _: events.extend(pool.kv_event_queue)
    serve(driver, "more", P0, prompt_of("more", 37))
    removed = [event.block_hashes[0] for event in events if isinstance(event, BlockRemoved)]
    batch_hashes, urgent_hashes = (list(map(maybe_convert_block_hash, r.block_hashes)) for r in (batch, urgent))
    assert removed[:10] == batch_hashes[9::-1]
    assert removed[10:] == urgent_hashes[9 : 9 - len(removed[10:]) : -1]
    assert len(removed) > 10
    assert driver.scheduler.reset_prefix_cache()
    assert any(isinstance(event, AllBlocksCleared) for event in pool.take_events())


@pytest.mark.parametrize(("scheduler_settings", "prefix_cache"), [(LRU, True), (None, False)])
def test_eviction_leaves_vllm_s_queue_when_there_is_nothing_to_order(scheduler_settings, prefix_cache) -> None:
    driver = make_driver(scheduler_settings=scheduler_settings, prefix_cache=prefix_cache)
    assert type(driver.scheduler.kv_cache_manager.block_pool.free_block_queue) is FreeKVCacheBlockQueue
    serve(driver, "a", P0, prompt_of("a", 3))
    assert driver.scheduler.reset_prefix_cache()


CONVERSATIONS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(PriorityClass), st.integers(1, 40)), min_size=3, max_size=14
)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(turns=CONVERSATIONS, num_blocks=st.sampled_from([18, 26, 40]))
def test_eviction_leaves_no_block_that_cannot_be_found_whatever_is_served(turns, num_blocks) -> None:
    """Conversations take turns in any class; what is still cached of one is always a prefix of it."""
    driver = make_driver(num_blocks=num_blocks, max_num_seqs=1)
    history: dict[int, list[int]] = {}
    for number, (conversation, priority, num_tokens) in enumerate(turns):
        prompt = history.get(conversation, [conversation + 3] * 20)[-150:] + [3 + number] * num_tokens
        history[conversation] = prompt
        serve(driver, f"turn-{number}", priority, prompt)
        for request in driver.requests.values():
            assert sum(_found(driver, request)) == num_cached(driver, request)
    assert driver.num_free_blocks == driver.num_all_blocks
