"""KV swap as vLLM's KV connector, in the deferred form: copies run beside the forward pass, and nobody waits for one.

vLLM makes two of it: in the engine's core (scheduler role), where `SwapLedger` keeps the accounts, and in each worker,
where `SwapWorker` moves the bytes. This file translates between vLLM's calls and those two, and owns nothing else. It
hands out KV to the request that left it and to nobody else, so it is no cache; a request whose KV does not come back is
computed again.

A request that was swapped out resumes by vLLM's own path for KV that comes from elsewhere. While its copy out is in
flight `get_num_new_matched_tokens` says "not yet"; then the request gets device blocks, waits for its load as
`WAITING_FOR_REMOTE_KVS`, and runs when the load is done.

Recent turns first, or: what vLLM's interface does not allow. A connector says how many tokens behind the prefix found
on the device it can bring, one number: a request cannot run on its last turns while older history is still on its way,
and attention would have to read that history for every token. So all of a request's KV comes back before it runs, and
what is still on the device in the prefix cache is not copied again.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from replicas.kv_swap.metadata import SwapMoves, SwapReport
from replicas.kv_swap.regions import num_host_slots
from replicas.kv_swap.request_swap import RequestSwap, make_request_swap
from replicas.kv_swap.support import check_transfer_config, why_unsupported
from replicas.kv_swap.worker import SwapWorker
from slo.settings.swap import SwapSettings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger("expresslane.kv_swap")


class SwapConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM's types are not read
    """Made by vLLM, from `replicas.kv_swap.configuration.transfer_config`.

    In an engine that swap does not suit it is there and does nothing: `swap` stays None, and victims are computed
    again.

    Raises:
        ValueError: at start-up, for a `kv_transfer_config` in which it would do harm, or wrong settings.
    """

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check_transfer_config(vllm_config)
        self.settings = SwapSettings(**self._kv_transfer_config.kv_connector_extra_config)
        self.swap: RequestSwap | None = None
        self._worker: SwapWorker | None = None
        self._unsupported = why_unsupported(vllm_config, kv_cache_config)
        if self._unsupported is not None and role is KVConnectorRole.SCHEDULER:
            logger.warning("swap=off reason=%s: victims are computed again", self._unsupported)

    @property
    def requires_kv_delivery(self) -> bool:
        """Nobody waits for this KV elsewhere: what is lost is computed again."""
        return False

    # In the engine's core.

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """Called once, after the cache manager was made: the first moment at which there is a block pool."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._unsupported is None and self.settings.host_bytes:
            self.swap = make_request_swap(self._vllm_config, self._kv_cache_config, kv_cache_manager, self.settings)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Called for each request that could be admitted, with what was found of it on the device."""
        if self.swap is None:
            return 0, False
        num_tokens = self.swap.ledger.num_tokens_to_load(request.request_id, request.num_tokens, num_computed_tokens)
        return num_tokens, bool(num_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Called when `request` has been given its device blocks, and again when it runs after a load."""
        if self.swap is not None and self.swap.ledger.is_swapped(request.request_id):
            table = blocks.get_block_ids()[0]
            self.swap.ledger.begin_load(request.request_id, table, num_external_tokens, request.num_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:  # noqa: ARG002
        """Called once a step, last: the moves that begin with it."""
        return SwapMoves() if self.swap is None else self.swap.ledger.take_moves()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Called with what the workers of a step said, before vLLM looks at the loads that are done."""
        report = connector_output.kv_connector_worker_meta
        if self.swap is not None and isinstance(report, SwapReport):
            self.swap.note_report(report, time.monotonic())

    def request_finished(
        self,
        request: Request,
        block_ids: list[int],  # noqa: ARG002
    ) -> tuple[bool, dict[str, Any] | None]:
        """Called once for each request, whatever it was doing. Its blocks are free at once: copies hold their own
        references."""
        if self.swap is not None:
            self.swap.ledger.forget(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0] if block_ids else [])

    def has_pending_block_frees(self) -> bool:
        """Asked when a running request cannot grow: then it waits for copies in flight, and nobody else is
        preempted."""
        return self.swap is not None and self.swap.ledger.is_freeing

    def has_pending_push_work(self) -> bool:
        """Keeps the engine stepping until the last copy is done, or its blocks would stay in use."""
        return self.swap is not None and self.swap.ledger.num_in_flight > 0

    def reset_cache(self) -> bool | None:
        """There is no cache here: the scheduler has told the ledger what a reset means for it."""
        return True

    # In each worker.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Called once, before the first step: takes host memory, and measures what copies cost."""
        if self._unsupported is None and self.settings.host_bytes:
            self._worker = make_worker(self._vllm_config, self._kv_cache_config, kv_caches, self.settings)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Called before each step's forward pass is launched: all moves begin here, behind the steps before it and
        beside its own, which touches none of their blocks."""
        if self._worker is not None:
            assert isinstance(kv_connector_metadata, SwapMoves)
            self._worker.start(kv_connector_metadata)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        """Called at the end of each step, before the two below, which tell more of what it has collected."""
        if self._worker is None:
            return None, None
        self._worker.poll()
        return None, self._worker.take_loaded() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self._worker is None else self._worker.take_unloaded_blocks()

    def build_connector_worker_meta(self) -> SwapReport | None:
        return None if self._worker is None else self._worker.take_report()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads have begun in `handle_preemptions`: from here they would wait for this step's forward pass."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No layer waits: whoever is being loaded is not in the step."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved layer by layer."""

    def wait_for_save(self) -> None:
        """Copies out hold their blocks until they are done: no step waits for them."""

    def shutdown(self) -> None:
        """Called in both roles, at the end. Copies in flight are given up."""
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None


def make_worker(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, kv_caches: dict[str, Any], settings: SwapSettings
) -> SwapWorker:
    """The worker's side for this rank.

    Raises:
        RuntimeError: the host memory cannot be had.
        OSError: the directory cannot be used.
    """
    from pathlib import Path

    from replicas.kv_swap.copier import BlockCopier
    from replicas.kv_swap.directory import SwapDirectory
    from replicas.kv_swap.moves import Tier

    parallel, transfer = vllm_config.parallel_config, vllm_config.kv_transfer_config
    assert settings.host_bytes is not None
    assert transfer is not None
    assert transfer.engine_id is not None
    directory = None
    if settings.directory is not None and settings.directory_bytes is not None:
        max_bytes = settings.directory_bytes // parallel.world_size
        directory = SwapDirectory(Path(settings.directory), transfer.engine_id, parallel.rank, max_bytes)
    num_slots = num_host_slots(settings.host_bytes, kv_cache_config, parallel.world_size)
    copier = BlockCopier(kv_cache_config, kv_caches, num_slots, directory)
    bandwidths = {Tier.MEMORY: copier.measure()}
    if (of_directory := copier.measure_directory()) is not None:
        bandwidths[Tier.DIRECTORY] = of_directory
    return SwapWorker(copier, bandwidths)
