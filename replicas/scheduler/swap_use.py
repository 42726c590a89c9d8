"""What KV swap has moved and holds, in the words of a snapshot. Reads its accounts, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicas.kv_swap.connector import SwapConnector
from replicas.kv_swap.counts import LossReason, SwapCounts
from replicas.kv_swap.moves import Direction, Tier
from replicas.kv_swap.regions import block_bytes, num_host_slots
from slo.snapshots import SwapRefusal, SwapUse

if TYPE_CHECKING:
    from replicas.scheduler.scheduler import PriorityScheduler


class SwapUseReader:
    """One scheduler's swap; all zero where there is none."""

    def __init__(self, scheduler: PriorityScheduler) -> None:
        self._scheduler = scheduler
        self._num_workers = scheduler.parallel_config.world_size
        connector = scheduler.connector
        self._swap = connector.swap if isinstance(connector, SwapConnector) else None
        self._num_slots = self._slot_bytes = 0
        if self._swap is not None and self._swap.settings.host_bytes:
            config = scheduler.kv_cache_config
            self._num_slots = num_host_slots(self._swap.settings.host_bytes, config, self._num_workers)
            self._slot_bytes = block_bytes(config) * self._num_workers

    def read(self) -> SwapUse:
        """As it is now. Bytes are of all workers together."""
        counts = self._scheduler.preemption_counts.swap
        num_free = 0 if self._swap is None else self._swap.ledger.room.free_blocks(Tier.MEMORY)
        return SwapUse(
            bytes_out=counts.num_bytes[Direction.OUT] * self._num_workers,
            bytes_in=counts.num_bytes[Direction.IN] * self._num_workers,
            seconds_out=counts.seconds[Direction.OUT],
            seconds_in=counts.seconds[Direction.IN],
            refusals=refusals_of(counts),
            host_bytes=self._num_slots * self._slot_bytes,
            host_used_bytes=(self._num_slots - num_free) * self._slot_bytes,
        )


def refusals_of(counts: SwapCounts) -> dict[SwapRefusal, int]:
    """Moves that were not made, or failed. What was computed again because that is cheaper, or as nothing can be moved,
    is no refusal."""
    lost = counts.num_recomputed
    numbers = {
        SwapRefusal.TOO_SLOW: counts.num_refused + lost[LossReason.OVER_LIMIT],
        SwapRefusal.HOST_FULL: lost[LossReason.NO_ROOM],
        SwapRefusal.COPY_FAILED: lost[LossReason.OUT_FAILED] + lost[LossReason.IN_FAILED],
    }
    return {reason: n for reason, n in numbers.items() if n}
