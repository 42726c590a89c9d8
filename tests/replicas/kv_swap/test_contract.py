"""What KV swap overrides in vLLM, or relies on there. A failure names the point that has moved.

vLLM does not promise any of it. After an upgrade, read the changed point in vLLM's source, then change this table.
"""

from __future__ import annotations

import inspect

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorTransferResults
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from replicas.kv_swap.configuration import transfer_config
from replicas.kv_swap.connector import SwapConnector
from slo.settings.swap import SwapSettings
from tests.replicas.scheduler.harness import Driver, EngineShape, build_scheduler

OVERRIDDEN = {
    "get_num_new_matched_tokens": ["self", "request", "num_computed_tokens"],
    "update_state_after_alloc": ["self", "request", "blocks", "num_external_tokens"],
    "build_connector_meta": ["self", "scheduler_output"],
    "update_connector_output": ["self", "connector_output"],
    "request_finished": ["self", "request", "block_ids"],
    "has_pending_block_frees": ["self"],
    "has_pending_push_work": ["self"],
    "reset_cache": ["self"],
    "bind_kv_cache_manager": ["self", "kv_cache_manager"],
    "register_kv_caches": ["self", "kv_caches"],
    "handle_preemptions": ["self", "kv_connector_metadata"],
    "get_finished": ["self", "finished_req_ids"],
    "get_block_ids_with_load_errors": ["self"],
    "build_connector_worker_meta": ["self"],
    "start_load_kv": ["self", "forward_context", "kwargs"],
    "wait_for_layer_load": ["self", "layer_name"],
    "save_kv_layer": ["self", "layer_name", "kv_layer", "attn_metadata", "kwargs"],
    "wait_for_save": ["self"],
    "shutdown": ["self"],
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_vllm_connector_method_that_is_overridden_has_kept_its_parameters(name: str) -> None:
    theirs, ours = (list(inspect.signature(getattr(c, name)).parameters) for c in (KVConnectorBase_V1, SwapConnector))
    assert theirs == OVERRIDDEN[name], f"KVConnectorBase_V1.{name} has moved: {theirs}, was {OVERRIDDEN[name]}"
    assert ours == theirs


def test_vllm_connector_has_no_abstract_method_that_is_not_here() -> None:
    assert not SwapConnector.__abstractmethods__


def test_vllm_transfer_config_knows_what_is_set() -> None:
    config = KVTransferConfig(**transfer_config(SwapSettings(host_bytes=1)))
    assert (config.is_kv_producer, config.is_kv_consumer) == (True, False)


def test_vllm_defers_block_frees_for_consumers_only() -> None:
    """Why the role is producer: with frees deferred, running decodes miss steps."""
    source = inspect.getsource(Scheduler.__init__)
    assert "if multiple_inflight_batches and kv_transfer_config.is_kv_consumer:\n" in source
    assert source.count("self.defer_block_free = True") == 1


def test_vllm_asks_for_pending_frees_before_it_preempts_and_then_waits() -> None:
    source = inspect.getsource(Scheduler.schedule)
    asks, preempts = source.index("has_pending_block_frees()"), source.index("self._preempt_request(")
    assert "new_blocks = self.kv_cache_manager.allocate_slots(" in source[:asks]
    assert "break" in source[asks:preempts]


def test_vllm_reads_the_number_of_run_slots_for_each_waiting_request() -> None:
    """Slots of loads that begin while vLLM schedules are kept so."""
    source = inspect.getsource(Scheduler.schedule)
    loop = source[source.index("while token_budget > 0:") :]
    assert "if num_running >= self.max_num_active_reqs:\n" in loop


def test_vllm_skips_a_request_of_which_the_connector_says_not_yet() -> None:
    source = inspect.getsource(Scheduler.schedule)
    not_yet = source[source.index("if ext_tokens is None:") :]
    assert "skip_request(request_queue)\n" in not_yet[:400]


def test_vllm_loads_for_a_request_only_when_none_of_its_output_is_in_flight() -> None:
    """So that all tokens with saved KV, but the last, are known when it resumes."""
    source = inspect.getsource(Scheduler.schedule)
    stale = source.index("if request.num_stale_output_tokens and not request.drop_stale_output:")
    assert stale < source.index("self.connector.get_num_new_matched_tokens(")


def test_vllm_tells_the_connector_of_output_before_it_looks_at_finished_loads() -> None:
    source = inspect.getsource(Scheduler._update_from_kv_xfer_finished)
    assert source.index("update_connector_output") < source.index("kv_connector_output.finished_recving")


def test_vllm_holds_the_blocks_of_an_aborted_load_until_it_has_ended() -> None:
    source = inspect.getsource(Scheduler.finish_requests)
    assert "if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:\n                delay_free_blocks" in source


def test_vllm_computes_again_from_the_first_block_that_was_not_loaded() -> None:
    source = inspect.getsource(Scheduler._update_requests_with_invalid_blocks)
    assert "request.num_computed_tokens = idx * self.block_size" in source


def test_vllm_scheduler_has_kept_what_finished_loads_are_taken_up_with() -> None:
    scheduler = build_scheduler(EngineShape(swap=SwapSettings(host_bytes=2**20)))
    for name in ("finished_recving_kv_req_ids", "failed_recving_kv_req_ids", "_inflight_prefills"):
        assert isinstance(getattr(scheduler, name), set), f"vLLM's Scheduler has no {name} any more"
    assert list(inspect.signature(Scheduler._inflight_prefill_reserved_blocks).parameters) == ["self"]


def test_vllm_request_has_kept_an_attribute() -> None:
    assert Driver(build_scheduler()).add("a", 2).skip_reading_prefix_cache is False


def test_vllm_pool_counts_references_that_are_not_a_request_s() -> None:
    pool = BlockPool(num_gpu_blocks=4, enable_caching=False, hash_block_size=16)
    blocks = pool.get_new_blocks(2)
    pool.touch(blocks)
    pool.free_blocks(blocks)
    assert (pool.get_num_free_blocks(), [b.ref_cnt for b in blocks]) == (1, [1, 1])
    pool.free_blocks(reversed(blocks))
    assert pool.get_num_free_blocks() == 3
    assert pool.blocks[blocks[0].block_id] is blocks[0]
    assert KVCacheBlock(block_id=1).ref_cnt == 0


def test_vllm_v1_runner_begins_moves_before_it_touches_its_batch() -> None:
    source = inspect.getsource(GPUModelRunner.execute_model)
    assert source.index("handle_preemptions(") < source.index("self._update_states(")
    assert source.index("handle_preemptions(") < source.index("kv_connector_no_forward(")


def test_vllm_v2_runner_begins_moves_with_every_step_also_with_one_that_computes_nothing() -> None:
    assert "self.kv_connector.handle_preemptions(" in inspect.getsource(ActiveKVConnector.pre_forward)
    assert "self.pre_forward(" in inspect.getsource(ActiveKVConnector.no_forward)
    assert "self.post_forward(" in inspect.getsource(ActiveKVConnector.no_forward)


@pytest.mark.parametrize(
    "reads", [KVConnectorModelRunnerMixin._get_kv_connector_output, ActiveKVConnector.post_forward]
)
def test_vllm_runners_ask_in_the_order_in_which_a_step_s_ends_belong_together(reads) -> None:
    source = inspect.getsource(reads)
    names = ["get_transfer_results(", "get_block_ids_with_load_errors(", "build_connector_worker_meta("]
    found = [source.index(name) for name in names]
    assert found == sorted(found)


def test_vllm_outputs_have_kept_their_fields() -> None:
    assert {"finished_recving", "invalid_block_ids", "kv_connector_worker_meta"} <= set(
        KVConnectorOutput.__dataclass_fields__
    )
    assert {"finished_recving"} <= set(KVConnectorTransferResults.__dataclass_fields__)
    assert "kv_connector_metadata" in SchedulerOutput.__dataclass_fields__


def test_vllm_waits_for_all_workers_before_a_load_counts_as_done_and_hands_all_reports_on() -> None:
    source = inspect.getsource(KVOutputAggregator.aggregate)
    assert "self._recv_remaining_count" in source
    assert "invalid_block_ids |= kv_output.invalid_block_ids" in source
    assert "aggregated_kv_connector_worker_meta.aggregate(" in source
