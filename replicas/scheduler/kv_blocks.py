"""KV blocks as the plan counts them: read from vLLM's cache manager, never changed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.request import Request

if TYPE_CHECKING:
    from replicas.scheduler.scheduler import PriorityScheduler


class KVBlocks:
    """Reads the block accounts of one scheduler."""

    def __init__(self, scheduler: PriorityScheduler) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._block_sizes = tuple(m.block_size for m in self._manager.coordinator.single_type_managers)

    @property
    def num_free(self) -> int:
        return self._manager.block_pool.get_num_free_blocks()

    @property
    def num_freeing(self) -> int:
        """Blocks of finished and preempted requests that an unfinished step may still write."""
        return sum(len(blocks) for _, blocks in self._scheduler.deferred_frees)

    @property
    def watermark(self) -> int:
        return self._manager.watermark_blocks

    def growth_of(self, request: Request, num_new_tokens: int) -> int:
        """Free blocks that `request`, which holds KV, takes to compute `num_new_tokens` more."""
        num_tokens = request.num_computed_tokens + num_new_tokens + self._scheduler.num_lookahead_tokens
        num_tokens = min(num_tokens, self._scheduler.max_model_len)
        groups = self._manager.coordinator.get_blocks(request.request_id)
        return sum(
            max(0, -(-num_tokens // block_size) - len(blocks))
            for block_size, blocks in zip(self._block_sizes, groups, strict=True)
        )

    def most_growth(self, num_requests: int, num_new_tokens: int) -> int:
        """A bound, quick to have: no `num_requests` take more blocks to compute `num_new_tokens` between them."""
        num_tokens = num_new_tokens + num_requests * self._scheduler.num_lookahead_tokens
        return sum(num_tokens // block_size + num_requests for block_size in self._block_sizes)

    def held_by(self, request_id: str) -> dict[int, int]:
        """Block id to the number of requests that hold the block."""
        groups = self._manager.coordinator.get_blocks(request_id)
        return {block.block_id: block.ref_cnt for group in groups for block in group if not block.is_null}

    def need_of(self, request: Request) -> tuple[int, int, dict[int, int]]:
        """Free blocks for all known tokens of a waiting `request`, its tokens not yet computed, and its shared blocks.

        Shared ones are cached blocks of its sequence that some request holds: they cost nothing. Cached blocks that
        nobody holds are free blocks, and count as needed.
        """
        num_blocks = self._scheduler._request_remaining_blocks(request)
        num_tokens = request.num_tokens - request.num_computed_tokens
        if request.num_computed_tokens:
            return num_blocks, num_tokens, {}
        hit, num_hit_tokens, _ = self._manager.get_computed_blocks(request)
        shared = {b.block_id: b.ref_cnt for group in hit.blocks for b in group if b.ref_cnt > 0 and not b.is_null}
        if self._scheduler.swapping.is_swapped(request):  # It computes nothing before its KV is back.
            reserved = self._scheduler._inflight_prefill_reserved_blocks()
            return num_blocks - len(shared) + reserved, 0, shared
        return num_blocks - len(shared), num_tokens - num_hit_tokens, shared
