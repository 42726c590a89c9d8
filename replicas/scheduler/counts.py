"""What preemption has done since start-up: plain numbers for statistics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from replicas.kv_swap.counts import SwapCounts
from slo.priority import PriorityClass
from slo.snapshots import PreemptionKind


@dataclass(slots=True)
class PreemptionCounts:
    """Running totals. One writer: the scheduler."""

    num_paused: int = 0
    """Requests that left their run slot and kept their KV."""
    num_recomputed: int = 0
    """Requests that lost slot and KV: for a waiting request, or in the engine's own preemption when KV runs out."""
    num_swapped: int = 0
    """Running requests that lost their slot, and whose KV was copied out."""
    num_reclaimed: int = 0
    """Paused requests that lost their KV as well."""
    num_reclaimed_swapped: int = 0
    """Paused requests whose KV was copied out."""
    num_lost_tokens: int = 0
    """Tokens whose KV was given up by recomputed and reclaimed requests. An upper bound of what is computed again: the
    prefix cache may still have some of it."""
    num_recomputed_tokens: int = 0
    """Tokens computed again because of preemption: known when the request resumes."""
    num_refused: int = 0
    """Times that the engine did not admit a request for which there was room, by the plan."""
    num_promotions: int = 0
    """Times that a request was lifted by one class because it had waited too long."""
    num_capped: int = 0
    """Requests preempted so often that they yield no more."""
    num_victims: dict[PriorityClass, int] = field(default_factory=lambda: dict.fromkeys(PriorityClass, 0))
    """Paused, recomputed and swapped running requests, by the class that they counted as."""
    num_by_kind: Counter[tuple[PreemptionKind, PriorityClass]] = field(default_factory=Counter)
    """The same victims by what was done to them too; reclaimed ones, swapped or not, once more as such."""
    swap: SwapCounts = field(default_factory=SwapCounts)
    """What KV swap has moved, refused and lost; written by it."""

    def add_paused(self, priority: PriorityClass) -> None:
        self.num_paused += 1
        self.num_by_kind[PreemptionKind.PAUSED, priority] += 1
        self.num_victims[priority] += 1

    def add_recomputed(self, priority: PriorityClass, num_lost_tokens: int) -> None:
        self.num_recomputed += 1
        self.num_by_kind[PreemptionKind.RECOMPUTED, priority] += 1
        self.num_victims[priority] += 1
        self.num_lost_tokens += num_lost_tokens

    def add_swapped(self, priority: PriorityClass) -> None:
        self.num_swapped += 1
        self.num_by_kind[PreemptionKind.SWAPPED, priority] += 1
        self.num_victims[priority] += 1

    def add_reclaimed_swapped(self, priority: PriorityClass) -> None:
        self.num_reclaimed_swapped += 1
        self.num_by_kind[PreemptionKind.RECLAIMED, priority] += 1

    def add_reclaimed(self, priority: PriorityClass, num_lost_tokens: int) -> None:
        self.num_reclaimed += 1
        self.num_by_kind[PreemptionKind.RECLAIMED, priority] += 1
        self.num_lost_tokens += num_lost_tokens
