"""What a move of KV costs, and what becomes of a victim when memory is short: swap, recompute, or no preemption.

Pure: no clock, nothing of vLLM or torch. The rate of a tier is measured when the engine starts. What moves took since
corrects it: each tells by which factor it missed, and the factors' mean (of their logarithms) is the correction. A move
counts for as much as it says about the rate, so that small ones, which are mostly fixed cost, do not dominate; one that
was disturbed counts as missed by a bounded factor; old ones give way to new ones, and all are forgotten with time, down
to the rate as measured. That last is also the way back after a slow spell, in which estimates allowed no move to learn
from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from replicas.kv_swap.moves import Bandwidths, Direction, Tier

FULL_WEIGHT_MS = 5.0
"""A move counts fully from this estimate on, milliseconds: a tenth of the default limit on a move. Starting one
costs some tenths of a millisecond, which a rate should not contain."""
PRIOR_WEIGHT = 1.0
"""The measurement at start-up counts as much as one full move: it moved as much."""
HALF_LIFE_S = 30.0
"""A move counts half after so long, seconds: as long as urgent traffic is expected at most (`slo.settings`)."""
MAX_WEIGHT = 16.0
"""So many full moves are remembered: a rate that changed for good is believed after about as many."""
OUTLIER_RATIO = 8.0
"""A move that missed the present estimate by a larger factor counts as having missed by this one."""


class MoveCost:
    """How long a move takes in one tier. One writer."""

    def __init__(self, block_bytes: int, bandwidths: Bandwidths) -> None:
        """`block_bytes`: of one KV block in one worker. With several workers, give the slowest one's bandwidths."""
        self._block_bytes = block_bytes
        self._rates = {d: _CorrectedRate(bandwidths.of(d)) for d in Direction}

    def estimate_ms(self, num_blocks: int, direction: Direction, now_s: float) -> float:
        """What a move of so many blocks takes, milliseconds, in one worker (all workers copy at the same time)."""
        return self._rates[direction].estimate_ms(num_blocks * self._block_bytes, now_s)

    def observe(self, direction: Direction, num_bytes: int, seconds: float, now_s: float) -> None:
        """A move in one worker took so long; one without bytes, or done in no time, says nothing."""
        if num_bytes > 0 and seconds > 0:
            self._rates[direction].observe(num_bytes, seconds, now_s)


class _CorrectedRate:
    """Bytes a second, as measured once and as observed since."""

    def __init__(self, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"a bandwidth must be positive: {bytes_per_s} bytes a second")
        self._bytes_per_s = bytes_per_s
        self._weight = 0.0
        self._weighted_logs = 0.0
        self._last_s = -math.inf

    def estimate_ms(self, num_bytes: int, now_s: float) -> float:
        return num_bytes / self._bytes_per_s * 1e3 * math.exp(self._log_correction(now_s))

    def observe(self, num_bytes: int, seconds: float, now_s: float) -> None:
        present = self._log_correction(now_s)
        weight = min(1.0, self.estimate_ms(num_bytes, now_s) / FULL_WEIGHT_MS)
        missed = math.log(seconds * self._bytes_per_s / num_bytes) - present
        bound = math.log(OUTLIER_RATIO)
        kept = self._kept(now_s) * min(1.0, MAX_WEIGHT / (self._weight + weight))
        self._weight = self._weight * kept + weight
        self._weighted_logs = self._weighted_logs * kept + weight * (present + max(-bound, min(bound, missed)))
        self._last_s = max(self._last_s, now_s)

    def _log_correction(self, now_s: float) -> float:
        kept = self._kept(now_s)
        return self._weighted_logs * kept / (PRIOR_WEIGHT + self._weight * kept)

    def _kept(self, now_s: float) -> float:
        return math.exp2(-max(0.0, now_s - self._last_s) / HALF_LIFE_S)


def recompute_ms(num_tokens: int, prefill_tokens_per_s: float | None) -> float | None:
    """What it takes to compute `num_tokens` again, milliseconds; None while the rate is unknown."""
    if prefill_tokens_per_s is None or prefill_tokens_per_s <= 0:
        return None
    return num_tokens / prefill_tokens_per_s * 1e3


class Exit(StrEnum):
    """What becomes of a victim: its KV is moved out, or dropped, or it is no victim after all."""

    SWAP = "swap"
    RECOMPUTE = "recompute"
    REFUSED = "refused"


class ExitReason(StrEnum):
    """Why."""

    FITS = "fits"
    NOTHING_TO_MOVE = "nothing_to_move"
    RECOMPUTE_IS_CHEAPER = "recompute_is_cheaper"
    OVER_LIMIT = "over_limit"
    NO_ROOM = "no_room"


@dataclass(frozen=True, slots=True)
class TierView:
    """One tier, as seen by one victim.

    Attributes:
        has_room: its own blocks fit.
        out_ms: until they are out, milliseconds, with what is queued before them.
        in_ms: to bring them back, milliseconds.
    """

    has_room: bool
    out_ms: float
    in_ms: float


@dataclass(frozen=True, slots=True)
class VictimView:
    """A victim as the decision sees it.

    Attributes:
        num_own_blocks: blocks that nobody else holds: what would be copied.
        recompute_ms: to compute its KV again; None if unknown.
        can_refuse: whether the preemption can be given up. Not so when a running request has no block to grow into.
        directory: None where no directory is set.
    """

    num_own_blocks: int
    recompute_ms: float | None
    can_refuse: bool
    memory: TierView
    directory: TierView | None = None


@dataclass(frozen=True, slots=True)
class ExitChoice:
    """`tier` is set for a swap, and only then."""

    exit: Exit
    reason: ExitReason
    tier: Tier | None = None


def decide_exit(victim: VictimView, max_move_ms: float, over_limit: Literal["queue", "recompute"]) -> ExitChoice:
    """What becomes of a victim whose blocks are needed.

    Moving out and back must cost less than computing again, where that is known, and moving out, which is what the
    urgent request waits for, no more than `max_move_ms`. The limit comes before the room: a victim too large to move is
    not dropped instead because host memory happens to be full. The directory takes what memory has no room for, under
    the same conditions; where it does not meet them, the victim is recomputed.
    """
    if victim.num_own_blocks == 0:
        return ExitChoice(Exit.RECOMPUTE, ExitReason.NOTHING_TO_MOVE)
    if not _beats_recompute(victim.memory, victim.recompute_ms):
        return ExitChoice(Exit.RECOMPUTE, ExitReason.RECOMPUTE_IS_CHEAPER)
    if victim.memory.out_ms > max_move_ms:
        refused = victim.can_refuse and over_limit == "queue"
        return ExitChoice(Exit.REFUSED if refused else Exit.RECOMPUTE, ExitReason.OVER_LIMIT)
    if victim.memory.has_room:
        return ExitChoice(Exit.SWAP, ExitReason.FITS, Tier.MEMORY)
    if victim.directory is not None and _takes(victim.directory, victim.recompute_ms, max_move_ms):
        return ExitChoice(Exit.SWAP, ExitReason.FITS, Tier.DIRECTORY)
    return ExitChoice(Exit.RECOMPUTE, ExitReason.NO_ROOM)


def _takes(tier: TierView, recompute_ms: float | None, max_move_ms: float) -> bool:
    return tier.has_room and tier.out_ms <= max_move_ms and _beats_recompute(tier, recompute_ms)


def _beats_recompute(tier: TierView, recompute_ms: float | None) -> bool:
    return recompute_ms is None or tier.out_ms + tier.in_ms < recompute_ms
