"""KV swap as the scheduler sees it: requests in, estimates and accounts out.

Between the ledger, which knows blocks, and the scheduler, which knows requests. Decides nothing: who is swapped is the
scheduler's choice, by `cost.decide_exit`.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from vllm.v1.request import Request

from replicas.kv_swap.cost import MoveCost
from replicas.kv_swap.counts import SwapCounts
from replicas.kv_swap.ledger import SwapLedger, split_table
from replicas.kv_swap.metadata import SwapReport
from replicas.kv_swap.moves import Bandwidths, Direction, Tier
from replicas.kv_swap.pool import FilePool, HostPool
from replicas.kv_swap.regions import block_bytes, num_host_slots
from replicas.kv_swap.room import SwapRoom
from slo.settings.swap import SwapSettings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger("expresslane.kv_swap")

ASSUMED = {Tier.MEMORY: Bandwidths(1e9, 1e9), Tier.DIRECTORY: Bandwidths(1e8, 1e8)}
"""Bytes a second until the workers have reported, with the first step. Conservative: the slowest measured here, copies
on two cores beside a model, is 2e9 for memory."""


class RequestSwap:
    """One engine's swap. Called by the engine's core, in its one thread."""

    def __init__(self, manager: KVCacheManager, ledger: SwapLedger, block_bytes: int, settings: SwapSettings) -> None:
        self.ledger = ledger
        self.settings = settings
        self._block_bytes = block_bytes
        self._costs = {tier: MoveCost(block_bytes, ASSUMED[tier]) for tier in Tier}
        self._coordinator = manager.coordinator
        self._block_size = manager.coordinator.single_type_managers[0].block_size

    @property
    def counts(self) -> SwapCounts:
        return self.ledger.counts

    def can_swap(self, request: Request) -> bool:
        """Whether its KV is all that brings a request back.

        Not for those whose prompt's log-probabilities are wanted, which vLLM computes from the first token on and never
        takes KV from elsewhere for, for media, whose encoder output vLLM lets go of, and for sessions of streamed
        input. Nor for output in flight that vLLM has decided to drop: its tokens are sampled again.
        """
        sampling = request.sampling_params
        return (
            sampling is not None
            and sampling.prompt_logprobs is None
            and not request.skip_reading_prefix_cache
            and not request.has_encoder_inputs
            and not request.resumable
            and not (request.num_stale_output_tokens and request.drop_stale_output)
        )

    def num_own_blocks(self, request: Request) -> int:
        """Blocks that a swap copies: those with valid KV that nobody else holds."""
        table = self._coordinator.get_blocks(request.request_id)[0]
        return len(split_table(table, request.num_computed_tokens, self._block_size)[1])

    def swap_out(self, request: Request, tier: Tier) -> bool:
        """Copy its KV out with the next step. The caller takes slot and blocks away afterwards, as for a recompute.

        False, and nothing happens, when there is nothing to copy or no room in `tier`.
        """
        table = self._coordinator.get_blocks(request.request_id)[0]
        return self.ledger.swap_out(request.request_id, table, request.num_computed_tokens, tier)

    def estimate_ms(self, num_blocks: int, direction: Direction, tier: Tier) -> float:
        """How long a move of so many blocks takes, milliseconds."""
        return self._costs[tier].estimate_ms(num_blocks, direction, time.monotonic())

    def note_report(self, report: SwapReport, now_s: float) -> None:
        """The workers of a step have said what has ended, and at first how fast they copy."""
        for tier, bandwidths in report.bandwidths.items():
            self._costs[tier] = MoveCost(self._block_bytes, bandwidths)
            logger.info("tier=%s out_bytes_per_s=%.3g in_bytes_per_s=%.3g reason=measured", tier, *_rates(bandwidths))
        for flight, done in self.ledger.note_done(report.done):
            if done.error is None:
                self._costs[done.tier].observe(done.direction, done.num_bytes, done.seconds, now_s)
            else:
                logger.warning(
                    "request_id=%s direction=%s tier=%s reason=copy_failed error=%s",
                    flight.request_id,
                    done.direction,
                    done.tier,
                    done.error,
                )


def make_request_swap(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, manager: KVCacheManager, settings: SwapSettings
) -> RequestSwap:
    """The swap of one engine with `settings`, whose `host_bytes` is set."""
    assert settings.host_bytes is not None
    num_workers, of_block = vllm_config.parallel_config.world_size, block_bytes(kv_cache_config)
    memory = HostPool(num_host_slots(settings.host_bytes, kv_cache_config, num_workers))
    directory = FilePool(settings.directory_bytes) if settings.directory_bytes is not None else None
    room = SwapRoom(memory, directory, of_block, num_workers)
    block_size = manager.coordinator.single_type_managers[0].block_size
    ledger = SwapLedger(room, manager.block_pool, block_size, num_workers)
    return RequestSwap(manager, ledger, of_block, settings)


def _rates(bandwidths: Bandwidths) -> tuple[float, float]:
    return bandwidths.out_bytes_per_s, bandwidths.in_bytes_per_s
