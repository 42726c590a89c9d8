"""What KV swap has done since start-up: plain numbers for statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from replicas.kv_swap.moves import Direction, Tier


class LossReason(StrEnum):
    """Why KV that was swapped, or was to be, is computed again."""

    CHEAPER = "cheaper"
    """Computing it again takes less time than moving it."""
    NOTHING_TO_MOVE = "nothing_to_move"
    """No block is the request's own."""
    OVER_LIMIT = "over_limit"
    """The move is estimated above `swap.max_move_ms`, and the preemption cannot wait."""
    NO_ROOM = "no_room"
    """Neither host memory nor the directory has room."""
    CANNOT_SWAP = "cannot_swap"
    """The request is of a kind whose KV alone does not bring it back."""
    OUT_FAILED = "out_failed"
    IN_FAILED = "in_failed"
    PREFIX_LOST = "prefix_lost"
    """Shared blocks before its own were evicted after they had been let go."""
    RESET = "reset"
    """The prefix cache was reset: KV from before must not be used."""


@dataclass(slots=True)
class SwapCounts:
    """Running totals. One writer: the engine's core, in its one thread."""

    num_swapped_out: int = 0
    """Requests whose KV was handed to a copy."""
    num_swapped_in: int = 0
    """Requests whose KV came back, whole or what was not still on the device."""
    num_out_by_tier: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
    """The same, by where it went."""
    num_blocks_out: int = 0
    num_blocks_in: int = 0
    num_bytes: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    """Copied, in one worker."""
    seconds: dict[Direction, float] = field(default_factory=lambda: dict.fromkeys(Direction, 0.0))
    """That copies took, in the slowest worker of each."""
    num_recomputed: dict[LossReason, int] = field(default_factory=lambda: dict.fromkeys(LossReason, 0))
    """Victims computed again although swap is on, by reason."""
    num_refused: int = 0
    """Requests for which no preemption took place, at least once, since its moves were estimated above the limit."""
    num_kept_released: int = 0
    """Times that a swapped request's shared blocks were let go, so that others could run."""

    def add_recomputed(self, reason: LossReason) -> None:
        self.num_recomputed[reason] += 1
